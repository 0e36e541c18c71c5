"""What this machine can do right now: how fast it reads memory and multiplies.

Usage: python benchmarks/machine.py [--num-threads N]

The probes are small loops in the extension, in the best instruction set that runs here: they read a buffer far larger than the
caches, and multiply in registers. They are the limits that the other benchmarks' figures are shares of.
"""

import argparse
from dataclasses import asdict

from octavo.kernels.cpu import instruction_sets, probe_machine
from octavo.kernels.cpu_count import default_num_threads
from reporting import save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-threads", type=int, default=default_num_threads())
    num_threads = parser.parse_args().num_threads
    rates = asdict(probe_machine(num_threads))
    print(f"{num_threads} threads, {instruction_sets()[0]}")
    for name, rate in rates.items():
        print(f"  {name:<18} {rate:8.1f}" if rate else f"  {name:<18}     none")
    save("machine", {"num_threads": num_threads, "instruction_set": instruction_sets()[0], **rates})


if __name__ == "__main__":
    main()
