"""What paging costs: decode attention over a shuffled block table against one contiguous run of blocks.

Usage: python benchmarks/paging.py [--model NAME] [--kv-dtype bf16] [--num-threads N] [--context 8192] [--batch 16]

Both layouts hold the same K and V; their results are first compared bit for bit, with each other and over all block sizes. The two
are then timed in turn, and the ratio is the median over the pairs.
"""

import argparse
import time
from dataclasses import asdict

import numpy as np

from attention import MODELS, Case, check
from machine import Limits
from octavo.kernels.cpu import CpuOperations
from octavo.kernels.cpu_count import default_num_threads
from octavo.kernels.kv_layout import KVLayout
from reporting import add_output_argument, parameters, save

BLOCK_SIZES = (16, 32, 64, 128)
NUM_PAIRS = 40


def time_pairs(first, second) -> np.ndarray:
    """Returns seconds ``[NUM_PAIRS, 2]``; within a pair the order alternates."""
    times = np.empty((NUM_PAIRS, 2))
    for pair in range(NUM_PAIRS):
        for index in (0, 1) if pair % 2 == 0 else (1, 0):
            started = time.perf_counter()
            (first, second)[index]()
            times[pair, index] = time.perf_counter() - started
    return times


def measure(ops: CpuOperations, arguments: argparse.Namespace, block_size: int, limits: Limits) -> tuple[dict, np.ndarray]:
    """Returns one block size's record, and the output that every other block size must give too."""
    _, num_kv_heads, head_dim, num_layers = MODELS[arguments.model]
    layout = KVLayout(arguments.kv_dtype, block_size, num_layers, num_kv_heads, head_dim)
    sizes = {"batch": arguments.batch, "context": arguments.context, "queries": 1}
    contiguous = Case.make(ops, arguments.model, layout, shuffled=False, **sizes)
    shuffled = Case.make(ops, arguments.model, layout, shuffled=True, **sizes)
    check(ops, contiguous)
    output = contiguous.attend(ops)
    assert output.tobytes() == shuffled.attend(ops).tobytes(), "shuffled blocks give other bits"
    times = time_pairs(contiguous.runner(ops), shuffled.runner(ops))
    limits.probe()
    ratios = times[:, 1] / times[:, 0]
    rates = contiguous.read_bytes / np.median(times, axis=0) / 1e9
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    print(
        f"{block_size:10} {rates[0]:9.1f} {limits.read_share(rates[0]):6.0%} {rates[1]:9.1f} {limits.read_share(rates[1]):6.0%} "
        f"{middle:8.3f} ({low:.3f} .. {high:.3f})",
        flush=True,
    )
    record = {
        "block_size": block_size,
        "contiguous_gb_per_s": rates[0],
        "shuffled_gb_per_s": rates[1],
        "ratio": middle,
        "ratio_quartiles": [low, high],
    }
    return record, output


def main() -> None:
    """Measures, prints the table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="smollm2-135m")
    parser.add_argument("--kv-dtype", default="bf16")
    parser.add_argument("--num-threads", type=int, default=default_num_threads())
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=16)
    add_output_argument(parser)
    arguments = parser.parse_args()
    ops = CpuOperations(arguments.num_threads)
    print(f"{arguments.model}, {arguments.kv_dtype}, {arguments.batch} x {arguments.context}, {ops.instruction_set}")
    print("block size contiguous GB/s     shuffled GB/s      time ratio (quartiles)")
    records, outputs, limits = [], [], Limits(arguments.num_threads)
    for block_size in BLOCK_SIZES:
        record, output = measure(ops, arguments, block_size, limits)
        records.append(record)
        outputs.append(output.tobytes())
    assert len(set(outputs)) == 1, "block sizes give different bits"
    report = {"instruction_set": ops.instruction_set, "machine": asdict(limits.rates), "figures": records}
    save("paging", parameters(arguments) | report, arguments.output)


if __name__ == "__main__":
    main()
