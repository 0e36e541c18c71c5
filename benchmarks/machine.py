"""What this machine can do right now: how fast it reads memory and multiplies.

Usage: python benchmarks/machine.py

The probes are numpy's own loops, one thread per processor: a matrix product for arithmetic, a maximum for reading. They are a
yardstick for ratios within one run, not the machine's last percent.
"""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np

BYTES_PER_THREAD = 256 * 2**20  # far above any cache
MATRIX_SIZE = 2048
REPEATS = 5


@dataclass(frozen=True)
class MachineProbe:
    """Rates of this moment, the best of a few tries.

    Attributes:
        read_gb_per_s: reading memory, all threads together.
        fp32_gflop_per_s: a float32 matrix product, all threads together.
    """

    read_gb_per_s: float
    fp32_gflop_per_s: float


def best_seconds(work: Callable[[], object]) -> float:
    """Returns the least time that ``work`` took."""
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def probe_machine() -> MachineProbe:
    """Measures for about a second."""
    num_threads = len(os.sched_getaffinity(0))
    parts = [np.ones(BYTES_PER_THREAD // 4, np.float32) for _ in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as pool:
        read_s = best_seconds(lambda: list(pool.map(np.max, parts)))
    matrix = np.ones((MATRIX_SIZE, MATRIX_SIZE), np.float32)
    product_s = best_seconds(lambda: matrix @ matrix)
    return MachineProbe(
        read_gb_per_s=num_threads * BYTES_PER_THREAD / read_s / 1e9,
        fp32_gflop_per_s=2 * MATRIX_SIZE**3 / product_s / 1e9,
    )


if __name__ == "__main__":
    print(json.dumps(asdict(probe_machine())))
