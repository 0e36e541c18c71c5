"""Times paged attention, decode and prefill, as shares of what the machine can do in the same minute.

Usage: python benchmarks/attention.py [--models NAME …] [--kv-dtype bf16] [--num-threads N] [--context 8192] [--batch 16]

Decode is one query of each of `batch` sequences over `context` tokens; what counts is K and V read per second. Prefill is a whole
prompt; what counts is the arithmetic that the causal mask leaves. Every case is first checked: one sequence against the
reference, and each sequence alone against itself in the batch, bit for bit.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from machine import Limits
from octavo.kernels.cpu import CpuOperations, CpuProgram
from octavo.kernels.cpu_count import default_num_threads
from octavo.kernels.kv_layout import KVLayer, KVLayout
from octavo.kernels.operations import Operations
from octavo.kernels.reference import ReferenceOperations
from octavo.kernels.step_arrays import StepArrays
from octavo.runner.kv_storage import KVStorage
from reporting import add_output_argument, parameters, save

# (query heads, KV heads, head_dim, layers)
MODELS = {
    "smollm2-135m": (9, 3, 64, 30),
    "qwen3-0.6b": (16, 8, 128, 28),
    "llama-3.2-1b": (32, 8, 64, 16),
    "gemma3-270m": (4, 1, 256, 18),
}
PROMPT_TOKENS = 1024
FILL_TOKENS = 2048  # stored at a time
MIN_REPETITIONS = 5
SECONDS_PER_FIGURE = 1.0
TOLERANCE = 1e-5  # of float32 soft-max and sums over values of size 1


@dataclass(frozen=True)
class Case:
    """One layer's attention over sequences of equal length, their K and V random and stored."""

    num_q_heads: int
    kv: KVLayer
    step: StepArrays
    qkv: np.ndarray

    @staticmethod
    def make(ops: CpuOperations, model: str, layout: KVLayout, *, batch: int, context: int, queries: int, shuffled: bool) -> "Case":
        """Lays out ``batch`` sequences of ``context`` tokens, the last ``queries`` of which the step computes."""
        rng = np.random.default_rng(0)
        num_q_heads, num_kv_heads, head_dim, _ = MODELS[model]
        blocks_per_seq = -(-context // layout.block_size)
        ids = np.arange(batch * blocks_per_seq, dtype=np.int32)
        tables = (rng.permutation(ids) if shuffled else ids).reshape(1, batch, blocks_per_seq)
        kv = KVStorage(layout, len(ids)).layer(layout.num_layers // 2)
        width = (num_q_heads + 2 * num_kv_heads) * head_dim
        values = np.random.default_rng(1).standard_normal((FILL_TOKENS, width), np.float32)
        fill(ops, kv, tables[0], context, values, num_q_heads)
        rows = batch * queries
        step = StepArrays(
            token_ids=np.zeros(rows, np.int32),
            positions=np.zeros(rows, np.int32),
            slot_mapping=np.full((1, rows), -1, np.int64),
            block_tables=np.ascontiguousarray(tables),
            table_rows=np.arange(batch, dtype=np.int32),
            context_lens=np.full(batch, context, np.int32),
            cu_seqlens_q=np.arange(0, rows + 1, queries, dtype=np.int32),
        )
        return Case(num_q_heads, kv, step, np.random.default_rng(2).standard_normal((rows, width), np.float32))

    def attend(self, ops: Operations | CpuProgram) -> np.ndarray:
        """Computes, or records, the attention; returns its output."""
        head_dim = self.kv.layout.head_dim
        out = np.empty((len(self.qkv), self.num_q_heads * head_dim), np.float32)
        ops.paged_attention(self.qkv, self.kv, self.step, 0, out, num_q_heads=self.num_q_heads, scale=head_dim**-0.5)
        return out

    def runner(self, ops: CpuOperations) -> Callable[[], None]:
        """Returns a function that runs the recorded operation once."""
        program = ops.record()
        self.attend(program)
        return lambda: program.run(len(self.qkv), len(self.step.context_lens))

    def sequence(self, index: int, num_queries: int) -> "Case":
        """Returns the case of one sequence alone, with its last ``num_queries`` queries."""
        last = self.step.cu_seqlens_q[index + 1]
        step = StepArrays(
            token_ids=self.step.token_ids[:num_queries],
            positions=self.step.positions[:num_queries],
            slot_mapping=self.step.slot_mapping[:, :num_queries],
            block_tables=self.step.block_tables,
            table_rows=self.step.table_rows[index : index + 1],
            context_lens=self.step.context_lens[index : index + 1],
            cu_seqlens_q=np.array([0, num_queries], np.int32),
        )
        return Case(self.num_q_heads, self.kv, step, self.qkv[last - num_queries : last])

    @property
    def read_bytes(self) -> int:
        """Bytes of K and V that the step must read once."""
        layout = self.kv.layout
        in_block = layout.part_bytes + layout.scale_bytes
        return int(sum(2 * in_block * context / layout.block_size for context in self.step.context_lens))

    @property
    def num_operations(self) -> int:
        """Products and sums of the scores and of the weighted sum, of visible tokens alone."""
        queries = len(self.qkv) // len(self.step.context_lens)
        visible = sum(queries * context - queries * (queries - 1) // 2 for context in self.step.context_lens.tolist())
        return 4 * visible * self.num_q_heads * self.kv.layout.head_dim


def fill(ops: CpuOperations, kv: KVLayer, tables: np.ndarray, context: int, values: np.ndarray, num_q_heads: int) -> None:
    """Stores K and V of every sequence; a token's values depend on its sequence and position alone."""
    half = kv.layout.head_dim // 2
    rotation = np.zeros((FILL_TOKENS, 2, half), np.float32)
    rotation[:, 0] = 1.0
    for sequence, table in enumerate(tables):
        for start in range(0, context, FILL_TOKENS):
            positions = np.arange(start, min(start + FILL_TOKENS, context))
            slots = table[positions // kv.layout.block_size].astype(np.int64) * kv.layout.block_size
            rows = np.roll(values, sequence, axis=0)[: len(positions)]
            ops.rope_and_store(rows, rotation[: len(rows)], slots + positions % kv.layout.block_size, kv, num_q_heads=num_q_heads)


def check(ops: CpuOperations, case: Case) -> None:
    """Compares a query with the reference, and sequences alone with the same in the batch."""
    together = case.attend(ops)
    expected = case.sequence(0, 1).attend(ReferenceOperations())
    last = case.step.cu_seqlens_q[1] - 1
    error = np.abs(together[last] - expected[0]).max()
    assert error < TOLERANCE, f"differs from the reference by {error}"
    for index in (0, len(case.step.context_lens) - 1):
        alone = case.sequence(index, 1).attend(ops)
        assert alone[0].tobytes() == together[case.step.cu_seqlens_q[index + 1] - 1].tobytes(), "alone differs from in the batch"


def least_seconds(run: Callable[[], None]) -> float:
    """Returns the least time of a run: the probes, too, are the best of several tries."""
    run()
    times: list[float] = []
    deadline = time.perf_counter() + SECONDS_PER_FIGURE
    while len(times) < MIN_REPETITIONS or time.perf_counter() < deadline:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(ops: CpuOperations, case: Case, name: str, limits: Limits) -> dict:
    """Checks and times one case between two probes, prints a line and returns it as a record."""
    check(ops, case)
    run = case.runner(ops)
    limits.probe()
    seconds = least_seconds(run)
    limits.probe()
    gb_per_s, gflop_per_s = case.read_bytes / seconds / 1e9, case.num_operations / seconds / 1e9
    print(
        f"{name:40} {seconds * 1e6:10.0f} {gb_per_s:7.1f} {limits.read_share(gb_per_s):6.0%} "
        f"{gflop_per_s:9.1f} {limits.float32_share(gflop_per_s):6.0%}",
        flush=True,
    )
    return {"case": name, "microseconds": seconds * 1e6, "gb_per_s": gb_per_s, "gflop_per_s": gflop_per_s}


def main() -> None:
    """Measures, prints the table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kv-dtype", default="bf16")
    parser.add_argument("--num-threads", type=int, default=default_num_threads())
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["smollm2-135m"])
    add_output_argument(parser)
    arguments = parser.parse_args()
    ops = CpuOperations(arguments.num_threads)
    print(f"{arguments.kv_dtype}, {ops.instruction_set}, {arguments.num_threads} threads")
    print("case                                             µs    GB/s  share   GFLOP/s  share of fp32")
    figures, limits = [], Limits(arguments.num_threads)
    for model in arguments.models:
        _, num_kv_heads, head_dim, num_layers = MODELS[model]
        layout = KVLayout(arguments.kv_dtype, 16, num_layers, num_kv_heads, head_dim)
        shapes = {
            f"{model} decode {arguments.batch} x {arguments.context}": (arguments.batch, arguments.context, 1),
            f"{model} prompt of {PROMPT_TOKENS}": (1, PROMPT_TOKENS, PROMPT_TOKENS),
            f"{model} chunk of 256 at {arguments.context}": (1, arguments.context, 256),
        }
        for name, (batch, context, queries) in shapes.items():
            case = Case.make(ops, model, layout, batch=batch, context=context, queries=queries, shuffled=True)
            figures.append(measure(ops, case, name, limits))
    for figure in figures:
        figure["read_share"] = limits.read_share(figure["gb_per_s"])
        figure["arithmetic_share"] = limits.float32_share(figure["gflop_per_s"])
    report = {"instruction_set": ops.instruction_set, "machine": asdict(limits.rates), "figures": figures}
    save("attention", parameters(arguments) | report, arguments.output)


if __name__ == "__main__":
    main()
