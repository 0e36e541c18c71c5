"""Times the kernels over the shapes of real models, as shares of what the machine can do in the same run.

Usage: python benchmarks/kernels.py [--model NAME] [--rows 1,64] [--formats bf16,int4] [--num-threads N]

A product is timed as a forward pass meets it: several weights of one shape, together larger than the caches, one after the
other in one recorded program. Each is first compared with numpy, and rows computed alone with the same rows in the batch.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from machine import Limits
from octavo.kernels.cpu import CpuOperations
from octavo.kernels.cpu_count import default_num_threads
from octavo.kernels.host_tensor import HostTensor
from reporting import add_output_argument, save

# (outputs, inputs) of the products of one layer, and of the head.
SHAPES = {
    "smollm2-135m": {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "head": (49152, 576)},
    "qwen3-0.6b": {"qkv": (4096, 1024), "o": (1024, 2048), "gate_up": (6144, 1024), "down": (1024, 3072)},
    "llama-3.2-1b": {"qkv": (3072, 2048), "o": (2048, 2048), "gate_up": (16384, 2048), "down": (2048, 8192)},
}
FORMATS = ("fp32", "bf16", "int8", "int4")
ROWS = (1, 4, 8, 16, 64, 256)
COLD_BYTES = 96 * 2**20  # weights of one shape: three times the last-level cache of common machines
SECONDS_PER_FIGURE = 0.4
# Relative to the norm of a row; int4 and int8 round activations to 8 bits on some instruction sets.
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "int8": 2e-2, "int4": 2e-2}


@dataclass(frozen=True)
class Figure:
    """One product's timing.

    Attributes:
        microseconds: of one product, the median over runs of the program.
        gb_per_s: bytes of the weight per second.
        gflop_per_s: multiplications and additions per second.
    """

    product: str
    weight_format: str
    num_rows: int
    microseconds: float
    gb_per_s: float
    gflop_per_s: float


def make_weights(ops: CpuOperations, shape: tuple[int, int], weight_format: str) -> list:
    """Returns equal weights of this shape, together larger than the caches."""
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    tensor = HostTensor("w", shape, "f32", values)
    weights = [ops.pack_weight([tensor], weight_format)]
    num_copies = max(2, -(-COLD_BYTES // weights[0].num_bytes))
    return weights + [ops.pack_weight([tensor], weight_format) for _ in range(num_copies - 1)]


def check(ops: CpuOperations, weight, weight_format: str, x: np.ndarray) -> None:
    """Compares with numpy, and a row alone with the same row in the batch, bit for bit."""
    num_outputs, num_inputs = weight.shape
    values = np.empty((num_outputs, num_inputs), np.float32)
    ops.embed(np.arange(num_outputs, dtype=np.int32), weight, values)
    out, alone = np.empty((len(x), num_outputs), np.float32), np.empty((1, num_outputs), np.float32)
    ops.linear(x, weight, out)
    expected = x @ values.T
    error = np.linalg.norm(out - expected) / np.linalg.norm(expected)
    assert error < TOLERANCE[weight_format], f"{weight_format}: relative error {error}"
    ops.linear(x[-1:], weight, alone)
    assert alone.tobytes() == out[-1:].tobytes(), f"{weight_format}: a row alone differs from the row in its batch"


def time_product(ops: CpuOperations, weights: list, x: np.ndarray) -> float:
    """Returns the median seconds of one product."""
    out = np.empty((len(x), weights[0].shape[0]), np.float32)
    program = ops.record()
    for weight in weights:
        program.linear(x, weight, out)
    program.run(len(x), 0)
    times = []
    deadline = time.perf_counter() + SECONDS_PER_FIGURE
    while len(times) < 3 or time.perf_counter() < deadline:
        started = time.perf_counter()
        program.run(len(x), 0)
        times.append((time.perf_counter() - started) / len(weights))
    return float(np.median(times))


def measure(ops: CpuOperations, name: str, shape: tuple[int, int], weight_format: str, rows: list[int]) -> list[Figure]:
    """Checks one product and times it for each number of rows."""
    weights = make_weights(ops, shape, weight_format)
    check(ops, weights[0], weight_format, np.random.default_rng(1).standard_normal((max(rows), shape[1]), np.float32))
    figures = []
    for num_rows in rows:
        x = np.random.default_rng(num_rows).standard_normal((num_rows, shape[1]), np.float32)
        seconds = time_product(ops, weights, x)
        gb_per_s = weights[0].num_bytes / seconds / 1e9
        gflop_per_s = 2 * num_rows * shape[0] * shape[1] / seconds / 1e9
        figures.append(Figure(name, weight_format, num_rows, seconds * 1e6, gb_per_s, gflop_per_s))
    return figures


def print_figure(figure: Figure, limits: Limits) -> None:
    """Prints one line of the table."""
    print(
        f"{figure.product:10} {figure.weight_format:5} {figure.num_rows:5} {figure.microseconds:10.1f} {figure.gb_per_s:7.1f} "
        f"{limits.read_share(figure.gb_per_s):6.0%} {figure.gflop_per_s:9.1f} {limits.arithmetic_share(figure.gflop_per_s):6.0%}",
        flush=True,
    )


def with_shares(figure: Figure, limits: Limits) -> dict[str, Any]:
    """Returns a figure's record."""
    shares = {"read_share": limits.read_share(figure.gb_per_s), "arithmetic_share": limits.arithmetic_share(figure.gflop_per_s)}
    return asdict(figure) | shares


def read_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="numbers of rows, separated by commas")
    parser.add_argument("--formats", default=",".join(FORMATS), help="weight formats, separated by commas")
    parser.add_argument("--num-threads", type=int, default=default_num_threads())
    add_output_argument(parser)
    return parser.parse_args()


def main() -> None:
    """Measures, prints the table and one line of JSON."""
    arguments = read_arguments()
    ops = CpuOperations(arguments.num_threads)
    print(f"{arguments.model}, {ops.instruction_set}, {arguments.num_threads} threads")
    print("product    format  rows         µs    GB/s  share   GFLOP/s  share of arithmetic")
    rows = [int(number) for number in arguments.rows.split(",")]
    figures, limits = [], Limits(arguments.num_threads)
    for name, shape in SHAPES[arguments.model].items():
        for weight_format in arguments.formats.split(","):
            measured = measure(ops, name, shape, weight_format, rows)
            limits.probe()
            for figure in measured:
                print_figure(figure, limits)
                figures.append(figure)
    report = {
        "instruction_set": ops.instruction_set,
        "num_threads": arguments.num_threads,
        "model": arguments.model,
        "machine": asdict(limits.rates),
        "figures": [with_shares(figure, limits) for figure in figures],
    }
    save("kernels", report, arguments.output)


if __name__ == "__main__":
    main()
