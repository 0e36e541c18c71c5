"""paged_attention of the C++ backend: near the reference, and the same bits however the work is cut and laid out."""

import resource
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from kernels.paged_case import Sequence, Shape, Span, attend, make_step
from kernels.tolerance import assert_close
from octavo.kernels.cpu import CpuOperations
from octavo.kernels.reference import ReferenceOperations

# One token, a block, a block and one; the kernel's tile of 64 and its segment of 512 tokens, and one more.
LENGTHS = [1, 15, 16, 17, 64, 65, 129, 512, 513, 1100]
GRID = [
    Shape("bf16", 9, 3, 64),
    Shape("fp32", 4, 4, 64),
    Shape("fp16", 8, 2, 128),
    Shape("int8", 9, 3, 64),
    Shape("bf16", 8, 1, 80),
    Shape("bf16", 4, 1, 256),
    Shape("int8", 10, 2, 96),
    Shape("fp32", 16, 1, 16),
    Shape("bf16", 2, 2, 32),
    Shape("fp16", 6, 1, 48),
]


def size_of_terms(shape: Shape, sequence: Sequence, options: dict) -> float:
    """What an output element's error scales with: V, times what a weight's relative error scales with, the scores' terms."""
    heads = sequence.qkv[:, : shape.num_q_heads * shape.head_dim].reshape(-1, shape.head_dim)
    q_size, k_size = np.abs(heads).max(), np.abs(sequence.k).max()
    return float(np.abs(sequence.v).max() * (1 + q_size * k_size * np.sqrt(shape.head_dim) * options.get("scale", 1.0)))


def decode_spans(sequences: list[Sequence]) -> list[Span]:
    return [Span(sequence, len(sequence.k) - 1, len(sequence.k)) for sequence in sequences]


def whole(sequence: Sequence) -> Span:
    return Span(sequence, 0, len(sequence.k))


OPTIONS = [
    {"sliding_window": 1},
    {"sliding_window": 15},
    {"sliding_window": 16},
    {"sliding_window": 600},
    {"soft_cap": 5.0},
    {"soft_cap": 50.0, "sliding_window": 33, "scale": 0.3},
    {"sinks": True},
]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        *product(GRID, [{}, {"sliding_window": 100}]),
        *product(GRID[:4], OPTIONS),  # one shape of each KV dtype
    ],
    ids=str,
)
def test_agrees_with_the_reference(cpu, rng, shape, options):
    options = dict(options)
    if "sinks" in options:
        options["sinks"] = rng.standard_normal(shape.num_q_heads).astype(np.float32)
    sequences = [Sequence.random(rng, shape, length) for length in LENGTHS]
    spans = [*decode_spans(sequences), whole(sequences[5]), Span(sequences[7], 490, 512), Span(sequences[9], 1060, 1100)]
    actual = attend(cpu, shape, spans, options=options, placement_seed=1)
    expected = attend(ReferenceOperations(), shape, spans, options=options, placement_seed=1)
    assert_close(actual, expected, size_of_terms(shape, sequences[9], options))


@pytest.mark.parametrize("shape", GRID, ids=str)
@pytest.mark.parametrize("options", [{}, {"sliding_window": 50}, {"sliding_window": 700, "soft_cap": 8.0}], ids=str)
def test_chunks_of_a_prompt_give_the_bits_of_the_whole(cpu, rng, shape, options):
    sequence = Sequence.random(rng, shape, 1093)
    together = attend(cpu, shape, [whole(sequence)], options=options)
    cuts = [0, 1, 2, 5, 21, 64, 65, 200, 511, 513, 800, 1040, 1090, 1091, 1093]
    for first, last in pairwise(cuts):
        chunk = attend(cpu, shape, [Span(sequence, first, last)], options=options)
        np.testing.assert_array_equal(chunk.view(np.int32), together[first:last].view(np.int32), err_msg=f"{first}..{last}")


@pytest.mark.parametrize("shape", GRID, ids=str)
def test_bits_do_not_depend_on_placement_neighbours_order_or_threads(cpu_by_num_threads, rng, shape):
    sequences = [Sequence.random(rng, shape, length) for length in (1, 30, 640, 77, 1100)]
    spans = [*decode_spans(sequences), Span(sequences[3], 10, 77), Span(sequences[4], 1000, 1100)]
    order = rng.permutation(len(spans))
    alone = [attend(cpu_by_num_threads[1], shape, [span]) for span in spans]
    expected = np.concatenate([alone[i] for i in order])
    for cpu in cpu_by_num_threads.values():
        for block_size in (16, 32, 64, 128):
            together = attend(cpu, shape, [spans[i] for i in order], block_size=block_size, placement_seed=block_size)
            np.testing.assert_array_equal(together.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("shape", GRID, ids=str)
@pytest.mark.parametrize("sliding_window", [None, 8])
def test_unwritten_slots_have_no_influence(cpu, rng, shape, sliding_window):
    sequences = [Sequence.random(rng, shape, length) for length in range(1, 70)]
    spans = [*decode_spans(sequences), *(whole(sequences[length]) for length in (2, 15, 16, 37))]
    options = {"sliding_window": sliding_window}
    clean = attend(cpu, shape, spans, options=options, poison=0.0)
    assert np.isfinite(clean).all()
    for poison in (np.nan, np.inf, 1e30):
        poisoned = attend(cpu, shape, spans, options=options, poison=poison)
        np.testing.assert_array_equal(poisoned.view(np.int32), clean.view(np.int32))


def test_tokens_and_blocks_outside_the_window_have_no_influence(cpu, rng):
    shape, window = Shape("bf16", 4, 2, 64), 40
    sequence = Sequence.random(rng, shape, 300)
    expected = attend(cpu, shape, decode_spans([sequence]), options={"sliding_window": window})
    sequence.k[: 300 - window], sequence.v[: 300 - window] = np.nan, np.nan
    actual = attend(cpu, shape, decode_spans([sequence]), options={"sliding_window": window})
    np.testing.assert_array_equal(actual, expected)
    sequence.v[300 - window] += 1.0
    changed = attend(cpu, shape, decode_spans([sequence]), options={"sliding_window": window})
    assert not np.array_equal(changed, expected)


def test_sequences_without_queries_are_passed_over(cpu, rng):
    shape = Shape()
    sequences = [Sequence.random(rng, shape, length) for length in (30, 700)]
    idle = [Span(sequence, len(sequence.k), len(sequence.k)) for sequence in sequences]
    busy = decode_spans(sequences)
    together = attend(cpu, shape, [idle[0], busy[0], idle[1], idle[0], busy[1], idle[1]])
    np.testing.assert_array_equal(together, attend(cpu, shape, busy))


def test_softmax_survives_huge_scores(cpu, rng):
    shape = Shape("fp32", 2, 1, 16)
    sequence = Sequence.random(rng, shape, 200)
    options = {"scale": 1000.0}
    actual = attend(cpu, shape, [whole(sequence)], options=options)
    expected = attend(ReferenceOperations(), shape, [whole(sequence)], options=options)
    assert_close(actual, expected, size_of_terms(shape, sequence, options))


def test_recorded_program_takes_prefixes_of_its_sequences(cpu_by_num_threads, rng):
    shape = Shape()
    spans = decode_spans([Sequence.random(rng, shape, length) for length in (700, 20, 1300)])
    qkv, kv, step = make_step(shape, spans)
    out = np.zeros((3, shape.num_q_heads * shape.head_dim), np.float32)
    program = cpu_by_num_threads[2].record()
    program.paged_attention(qkv, kv, step, 0, out, num_q_heads=shape.num_q_heads, scale=0.125)
    for num_seqs in (3, 1, 2, 3):
        out[:] = np.nan
        program.run(num_seqs, num_seqs)
        expected = attend(cpu_by_num_threads[1], shape, spans[:num_seqs])
        np.testing.assert_array_equal(out[:num_seqs], expected)
        assert np.isnan(out[num_seqs:]).all()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_more_segments_than_results_are_kept_of_give_the_same_bits_in_bounded_memory(rng):
    """600 times the same 8,191 tokens before a query: 16 results of each of 32 heads would take 37 MiB."""
    shape, count = Shape("bf16", 32, 8, 16), 600
    qkv, kv, step = make_step(shape, [Span(Sequence.random(rng, shape, 16 * 512), 8191, 8192)])
    many = replace(
        step,
        table_rows=np.zeros(count, np.int32),
        context_lens=np.full(count, 8192, np.int32),
        cu_seqlens_q=np.arange(count + 1, dtype=np.int32),
    )
    cpu, queries = CpuOperations(2), np.repeat(qkv, count, axis=0)
    one, all_of_them = np.full((1, 32 * 16), np.nan, np.float32), np.full((count, 32 * 16), np.nan, np.float32)
    cpu.paged_attention(qkv, kv, step, 0, one, num_q_heads=32, scale=0.25)
    before = resident_bytes()
    cpu.paged_attention(queries, kv, many, 0, all_of_them, num_q_heads=32, scale=0.25)
    assert resident_bytes() - before < 24 * 2**20
    np.testing.assert_array_equal(all_of_them.view(np.int32), np.repeat(one, count, axis=0).view(np.int32))
