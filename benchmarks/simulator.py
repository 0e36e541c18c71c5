"""Times `octavo simulate` itself: scheduled tokens per second of processor time, with 1,000 sequences at once.

Usage: python benchmarks/simulator.py [--requests N] [--output FILE]

A closed loop of 1,000 users with requests of Alpaca's lengths, in a memory that holds them all. Processor time is of this thread,
so that other processes disturb it less. Prints a table, and one line of JSON last. Peak memory should not grow with the requests.
"""

import argparse
import resource
import time

from octavo.simulator.settings import SimulationSettings, simulate
from octavo.simulator.step_time import A100_40GB, OPT_13B, Roofline
from reporting import add_output_argument, save

NUM_USERS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    add_output_argument(parser)
    arguments = parser.parse_args()
    num_requests = arguments.requests
    settings = SimulationSettings(
        workload="closed",
        lengths="alpaca",
        users=NUM_USERS,
        requests=num_requests,
        max_num_seqs=NUM_USERS,
        kv_memory="1000GiB",
        prefix_caching=False,
    )
    started = time.thread_time()
    report = simulate(settings, OPT_13B, Roofline(OPT_13B, A100_40GB))
    elapsed_s = time.thread_time() - started
    assert report.num_finished == num_requests, "every request is answered"
    figures = {
        "requests": num_requests,
        "mean sequences at once": round(report.mean_running, 1),
        "scheduled tokens": report.num_computed_tokens,
        "processor seconds": round(elapsed_s),
        "scheduled tokens per processor second": round(report.num_computed_tokens / elapsed_s),
        "peak memory, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    for name, figure in figures.items():
        print(f"{name:<40}{figure:>12,}")
    save("simulator", figures, arguments.output)


if __name__ == "__main__":
    main()
