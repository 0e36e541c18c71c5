"""The reference operations against their formulas, written a second time as plain loops."""

import math

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.kernels.host_tensor import HostTensor
from octavo.kernels.kv_layout import KVLayer, KVLayout
from octavo.kernels.reference import ReferenceOperations
from octavo.kernels.reference_kv import encode
from octavo.kernels.reference_sampling import philox4x32, uniform
from octavo.kernels.rounding import bf16_bits, bf16_values
from octavo.kernels.step_arrays import StepArrays

OPS = ReferenceOperations()
RNG_SEED = 20260


@pytest.fixture
def rng():
    return np.random.default_rng(RNG_SEED)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def tensor(values):
    return HostTensor("w", values.shape, "f32", values)


def test_linear_stacks_parts_and_accumulates(rng):
    q, k, x, bias, out = floats(rng, 5, 8), floats(rng, 3, 8), floats(rng, 4, 8), floats(rng, 8), floats(rng, 4, 8)
    expected = out + x @ np.concatenate([q, k]).T + bias
    OPS.linear(x, OPS.pack_weight([tensor(q), tensor(k)], "fp32"), out, bias=bias, accumulate=True)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_linear_of_a_row_does_not_depend_on_the_batch(rng):
    weight = OPS.pack_weight([tensor(floats(rng, 33, 70))], "fp32")
    x, together, alone = floats(rng, 9, 70), np.empty((9, 33), np.float32), np.empty((1, 33), np.float32)
    OPS.linear(x, weight, together)
    for row in range(9):
        OPS.linear(x[row : row + 1], weight, alone)
        assert alone.tobytes() == together[row].tobytes()


def test_bf16_weights_are_rounded_to_nearest_even():
    values = np.array([[1.0, 1.00390625, 1.01171875, -3.0e38, 1.0e-40, np.inf]], np.float32)
    packed = OPS.pack_weight([tensor(values)], "bf16").values
    np.testing.assert_array_equal(packed[0, :3], [1.0, 1.0, 1.015625])  # both halves of a tie: down to even, up to even
    assert np.isinf(packed[0, 5])
    assert np.isnan(bf16_values(bf16_bits(np.array([np.nan], np.float32))))[0]


def test_unknown_weight_format_is_refused(rng):
    with pytest.raises(ConfigError, match="'int3'"):
        OPS.pack_weight([tensor(floats(rng, 2, 2))], "int3")


def test_rms_norm_and_logits(rng):
    x, weight, head = floats(rng, 6, 16), floats(rng, 16), floats(rng, 10, 16)
    normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    out = x.copy()
    OPS.rms_norm(x, weight, out, eps=1e-5, accumulate=True)
    np.testing.assert_allclose(out, x + normed, rtol=1e-5, atol=1e-6)
    rows, logits = np.array([4, 0], np.int32), np.empty((2, 10), np.float32)
    OPS.logits(x, rows, weight, OPS.pack_weight([tensor(head)], "fp32"), logits, eps=1e-5, soft_cap=2.0)
    np.testing.assert_allclose(logits, 2 * np.tanh(normed[rows] @ head.T / 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("silu", lambda g: g / (1 + math.exp(-g))),
        ("gelu_tanh", lambda g: 0.5 * g * (1 + math.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))),
    ],
)
def test_gated_activation(rng, activation, formula):
    gate_up, out = floats(rng, 3, 8), np.empty((3, 4), np.float32)
    gate_up[0, 0], gate_up[0, 1] = -300.0, 300.0
    OPS.gated_activation(gate_up, out, activation=activation)
    expected = [[formula(float(g)) * u for g, u in zip(row[:4], row[4:], strict=True)] for row in gate_up]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def paged_case(rng, kv_dtype, head_dim=8, num_kv_heads=2, num_blocks=7):
    """Two sequences of 35 and 3 tokens in shuffled blocks of a storage full of NaN."""
    layout = KVLayout(kv_dtype, 16, 2, num_kv_heads, head_dim)
    storage = np.full((num_blocks, layout.block_bytes), 0xFF, np.uint8)
    kv = KVLayer(storage, layout, 1)
    tables = np.array([[[5, 1, 4], [2, -1, -1]]], np.int32)
    return kv, tables, [35, 3]


def plain_attention(q, k, v, position, window, scale, cap, sink):
    """One head of one query, as a loop over the positions that it sees."""
    first = 0 if window is None else max(0, position - window + 1)
    scores = [scale * float(q @ k[j]) for j in range(first, position + 1)]
    if cap:
        scores = [cap * math.tanh(s / cap) for s in scores]
    weights = [math.exp(s) for s in scores]
    total = sum(weights) + (0.0 if sink is None else math.exp(sink))
    return sum(w * v[first + i].astype(np.float64) for i, w in enumerate(weights)) / total


@pytest.mark.parametrize("window", [None, 1, 7, 16, 40])
@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_rope_and_attention_over_shuffled_blocks(rng, window, cap, with_sinks):
    kv, tables, lengths = paged_case(rng, "fp32")
    num_q_heads, head_dim, total = 6, 8, sum(lengths)
    positions = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    slots = np.concatenate([tables[0, s, np.arange(n) // 16] * 16 + np.arange(n) % 16 for s, n in enumerate(lengths)])
    qkv, q_norm, k_norm = floats(rng, total, 10 * head_dim), floats(rng, head_dim), floats(rng, head_dim)
    frequencies = np.array([1.0, 0.1, 0.01])  # 6 of 8 elements are rotated
    rotation = np.empty((total, 2, 3), np.float32)
    OPS.rotary(positions, frequencies, rotation, scale=1.25)

    def prepared(head, weight, position):
        head = head / np.sqrt((head**2).mean() + 1e-6) * weight
        turned = head.copy()
        for i, f in enumerate(frequencies):
            c, s = 1.25 * math.cos(position * f), 1.25 * math.sin(position * f)
            turned[i], turned[i + 3] = head[i] * c - head[i + 3] * s, head[i + 3] * c + head[i] * s
        return turned

    heads = qkv.reshape(total, 10, head_dim).astype(np.float64)
    q = np.array([[prepared(h, q_norm, p) for h in row[:6]] for row, p in zip(heads, positions, strict=True)])
    k = np.array([[prepared(h, k_norm, p) for h in row[6:8]] for row, p in zip(heads, positions, strict=True)])
    v = heads[:, 8:]
    OPS.rope_and_store(qkv, rotation, slots, kv, num_q_heads=num_q_heads, q_norm=q_norm, k_norm=k_norm, eps=1e-6)
    np.testing.assert_allclose(qkv[:, : 6 * head_dim], q.reshape(total, -1), rtol=1e-4, atol=1e-5)

    sinks = floats(rng, num_q_heads) if with_sinks else None
    cu_seqlens_q = np.array([0, *np.cumsum(lengths)], np.int32)
    step = StepArrays(
        token_ids=positions,
        positions=positions,
        slot_mapping=slots[None],
        block_tables=tables[:, ::-1],  # rows in another order than the sequences
        table_rows=np.array([1, 0], np.int32),
        context_lens=np.array(lengths, np.int32),
        cu_seqlens_q=cu_seqlens_q,
    )
    out = np.empty((total, num_q_heads * head_dim), np.float32)
    OPS.paged_attention(qkv, kv, step, 0, out, num_q_heads=num_q_heads, scale=0.3, sliding_window=window, soft_cap=cap, sinks=sinks)
    for s, n in enumerate(lengths):
        mine = slice(cu_seqlens_q[s], cu_seqlens_q[s] + n)
        for p in range(n):
            for h in range(num_q_heads):
                sink = None if sinks is None else float(sinks[h])
                expected = plain_attention(q[mine][p, h], k[mine][:, h // 3], v[mine][:, h // 3], p, window, 0.3, cap, sink)
                actual = out[cu_seqlens_q[s] + p, h * head_dim : (h + 1) * head_dim]
                np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kv_dtype", "error_ratio"), [("fp32", 0.0), ("fp16", 2**-11), ("bf16", 2**-8), ("int8", 0.5 / 127)])
def test_attention_to_one_token_returns_its_stored_value(rng, kv_dtype, error_ratio):
    kv, tables, _ = paged_case(rng, kv_dtype)
    rotation, v = np.zeros((1, 2, 4), np.float32), floats(rng, 16)
    qkv = np.concatenate([floats(rng, 32), v])[None]  # q, k, v of two heads each
    OPS.rope_and_store(qkv, rotation, np.array([5 * 16]), kv, num_q_heads=2)
    step = StepArrays(
        token_ids=np.zeros(1, np.int32),
        positions=np.zeros(1, np.int32),
        slot_mapping=np.array([[5 * 16]]),
        block_tables=tables,
        table_rows=np.zeros(1, np.int32),
        context_lens=np.ones(1, np.int32),
        cu_seqlens_q=np.array([0, 1], np.int32),
    )
    out = np.empty((1, 16), np.float32)
    OPS.paged_attention(qkv, kv, step, 0, out, num_q_heads=2, scale=1.0)
    assert np.abs(out[0] - v).max() <= error_ratio * np.abs(v).max()


def test_fp16_saturates_instead_of_storing_infinity():
    encoded, _ = encode(np.array([[[1e6, -np.inf, 1.0, np.nan]]], np.float32), "fp16")
    np.testing.assert_array_equal(encoded[0, 0], np.array([65504, -65504, 1, np.nan], np.float16))


def test_a_slot_of_minus_one_stores_nothing(rng):
    kv, _, _ = paged_case(rng, "fp32")
    before = kv.storage.copy()
    OPS.rope_and_store(floats(rng, 2, 48), np.zeros((2, 2, 4), np.float32), np.array([-1, -1]), kv, num_q_heads=2)
    np.testing.assert_array_equal(kv.storage, before)


def test_copy_blocks_copies_whole_blocks(rng):
    storage = rng.integers(0, 256, (5, 128)).astype(np.uint8)
    before = storage.copy()
    OPS.copy_blocks(storage, np.array([[0, 3], [1, 4]]))
    np.testing.assert_array_equal(storage, before[[0, 1, 2, 0, 1]])


def test_philox_known_answers():
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox4x32((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)) == (
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    )


def test_draws_differ_by_seed_choice_and_position():
    base = uniform(7, 1, 2)
    assert len({base, uniform(8, 1, 2), uniform(7, 2, 2), uniform(7, 1, 3), uniform(7 + 2**40, 1, 2), uniform(7, 2, 1)}) == 6


def sample(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, draws=1):
    logits = np.array([logits], np.float32)
    rows = np.zeros(draws, np.int32)
    parameters = np.tile(np.array([temperature, top_k, top_p, min_p], np.float32), (draws, 1))
    keys = np.stack([np.full(draws, 11), np.zeros(draws), np.arange(draws)], axis=1).astype(np.uint64)
    out = np.empty(draws, np.int32)
    OPS.sample(logits, rows, parameters, keys, out)
    return out


def test_greedy_takes_the_lowest_of_equal_logits():
    assert sample([0.0, 3.0, 1.0, 3.0], temperature=0.0)[0] == 1


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-45])
def test_tiny_temperatures_act_as_greedy(temperature):
    assert set(sample([1000.0, 3000.0, 2999.0], temperature=temperature, draws=50)) == {1}


def test_a_huge_temperature_draws_nearly_evenly():
    counts = np.bincount(sample(np.arange(16) * 100.0, temperature=1e30, draws=5000), minlength=16)
    expected = 5000 / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # chi-square, 15 degrees of freedom, p = 0.001


def test_draws_follow_the_soft_max():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    counts = np.bincount(sample(np.log(probabilities), draws=4000), minlength=4)
    assert ((counts - 4000 * probabilities) ** 2 / (4000 * probabilities)).sum() < 16.3  # 3 degrees of freedom, p = 0.001


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.5}, {0, 1}),  # 0.4 alone is short of 0.5
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.45}, {0, 1, 2}),  # 0.2 / 0.4 = 0.5 stays, 0.1 / 0.4 does not
        ({"top_k": 1, "top_p": 0.9}, {0}),
    ],
)
def test_filters_keep_exactly(filters, kept):
    logits = np.log([0.4, 0.2, 0.2, 0.1, 0.1])
    assert set(sample(logits, draws=400, **filters).tolist()) == kept


def test_adjust_logits_is_sign_aware():
    logits = np.array([[2.0, -2.0, 5.0], [1.0, 1.0, 1.0]], np.float32)
    rows, ids = np.array([0, 0, 1], np.int32), np.array([0, 1, 2], np.int32)
    OPS.adjust_logits(logits, rows, ids, np.array([2, 2, 1], np.float32), np.array([0.5, 0, -np.inf], np.float32))
    np.testing.assert_array_equal(logits, [[1.5, -4.0, 5.0], [1.0, 1.0, -np.inf]])


def test_mask_logits_reads_bits_from_the_lowest():
    logits = np.zeros((2, 40), np.float32)
    masks = np.array([[1 << 3 | -(1 << 31), 1 << 7]], np.int32)  # tokens 3, 31 and 39
    OPS.mask_logits(logits, np.array([1], np.int32), masks)
    assert np.flatnonzero(np.isfinite(logits[1])).tolist() == [3, 31, 39]
    assert np.isfinite(logits[0]).all()


def test_logprobs_and_ranks():
    logits = np.array([[1.0, 4.0, 4.0, 2.0]], np.float32)
    ids, logprobs, ranks = np.empty((1, 3), np.int32), np.empty((1, 3), np.float32), np.empty(1, np.int32)
    zero, chosen = np.zeros(1, np.int32), np.array([3], np.int32)
    OPS.logprobs(logits, zero, chosen, ids, logprobs)
    OPS.chosen_ranks(logits, zero, chosen, ranks)
    total = math.log(sum(math.exp(z) for z in logits[0].tolist()))
    assert ids.tolist() == [[3, 1, 2]]
    np.testing.assert_allclose(logprobs, [[2 - total, 4 - total, 4 - total]], rtol=1e-6)
    assert ranks[0] == 3
