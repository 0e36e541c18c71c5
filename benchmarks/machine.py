"""What this machine can do right now: how fast it reads memory and multiplies.

Usage: python benchmarks/machine.py [--num-threads N]

The probes are small loops in the extension, in the best instruction set that runs here: they read a buffer far larger than the
caches, and multiply in registers. They are the limits that the other benchmarks' figures are shares of. Last comes how long
threads wait for each other at a barrier, of which a forward pass has one after every operation.
"""

import argparse
import time
from dataclasses import asdict

import numpy as np

from octavo.kernels.cpu import CpuOperations, MachineRates, instruction_sets, probe_machine
from octavo.kernels.cpu_count import default_num_threads
from reporting import add_output_argument, save


class Limits:
    """The best that a run's probes reached so far: anything else that runs can only lower one of them.

    Attributes:
        rates: of each kind of work, the highest of all probes.
    """

    def __init__(self, num_threads: int):
        self.num_threads = num_threads
        self.rates = probe_machine(num_threads)

    def probe(self) -> None:
        """Probes the machine once more; done beside every figure, for the machine's speed changes from minute to minute."""
        now = probe_machine(self.num_threads)
        self.rates = MachineRates(**{name: max(rate, getattr(now, name)) for name, rate in asdict(self.rates).items()})

    def read_share(self, gb_per_s: float) -> float:
        """Returns what part of the read bandwidth a rate is."""
        return gb_per_s / self.rates.read_gb_per_s

    def float32_share(self, gflop_per_s: float) -> float:
        """Returns what part of the float32 arithmetic a rate is."""
        return gflop_per_s / self.rates.fp32_gflop_per_s

    def arithmetic_share(self, gflop_per_s: float) -> float:
        """Returns what part of the float32 or bf16 arithmetic, whichever is faster, a rate is."""
        return gflop_per_s / max(self.rates.fp32_gflop_per_s, self.rates.bf16_gflop_per_s)


def barrier_us(num_threads: int, *, num_barriers: int = 1000, num_runs: int = 30) -> float:
    """Returns the microseconds of a barrier: a recorded program's time for each of its operations, when none has anything to do."""
    program = CpuOperations(num_threads).record()
    gate_up, out = np.zeros((1, 32), np.float32), np.zeros((1, 16), np.float32)
    for _ in range(num_barriers):
        program.gated_activation(gate_up, out, activation="silu")
    program.run(0, 0)
    times = []
    for _ in range(num_runs):
        started = time.perf_counter()
        program.run(0, 0)
        times.append(time.perf_counter() - started)
    return 1e6 * float(np.median(times)) / num_barriers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-threads", type=int, default=default_num_threads())
    add_output_argument(parser)
    arguments = parser.parse_args()
    num_threads = arguments.num_threads
    rates = asdict(probe_machine(num_threads))
    print(f"{num_threads} threads, {instruction_sets()[0]}")
    for name, rate in rates.items():
        print(f"  {name:<18} {rate:8.1f}" if rate else f"  {name:<18}     none")
    barrier = barrier_us(num_threads)
    print(f"  {'barrier_us':<18} {barrier:8.2f}")
    report = {"num_threads": num_threads, "instruction_set": instruction_sets()[0], **rates, "barrier_us": barrier}
    save("machine", report, arguments.output)


if __name__ == "__main__":
    main()
