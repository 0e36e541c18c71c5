"""rope_and_store of the C++ backend against the reference."""

import numpy as np
import pytest

from kernels.paged_case import Shape, poisoned_layer
from kernels.tolerance import assert_close
from octavo.kernels.kv_layout import KVLayer
from octavo.kernels.reference import ReferenceOperations
from octavo.kernels.reference_kv import layer_views, read_tokens

# One rounding unit, given that a value may round the other way; tolerance.py multiplies by 8.
EPS_OF_DTYPE = {"fp32": 2.0**-23, "fp16": 2.0**-14, "bf16": 2.0**-11, "int8": 2.0**-10}
BLOCK_SIZE = 32
NUM_BLOCKS = 3
# Scattered over the blocks, out of order; -1 is not written.
SLOTS = np.array([70, 3, -1, 4, 5, 95, 0, 16, -1, 33, 15], np.int64)


def run(operations, shape: Shape, qkv: np.ndarray, rotation: np.ndarray, norms: dict) -> tuple[np.ndarray, KVLayer]:
    qkv, kv = qkv.copy(), poisoned_layer(shape, BLOCK_SIZE, NUM_BLOCKS, np.nan)
    operations.rope_and_store(qkv, rotation, SLOTS[: len(qkv)], kv, num_q_heads=shape.num_q_heads, eps=1e-6, **norms)
    return qkv[:, : shape.num_q_heads * shape.head_dim], kv


def inputs(rng: np.random.Generator, shape: Shape, rotary_dim: int) -> tuple[np.ndarray, np.ndarray]:
    angles = rng.uniform(0, 6, (len(SLOTS), rotary_dim // 2))
    rotation = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return rng.standard_normal((len(SLOTS), shape.qkv_width)).astype(np.float32), rotation


@pytest.mark.parametrize("kv_dtype", EPS_OF_DTYPE)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (64, 64), (80, 32), (96, 96), (128, 20), (256, 64)])
@pytest.mark.parametrize("with_norms", [False, True])
def test_agrees_with_the_reference(cpu, rng, kv_dtype, head_dim, rotary_dim, with_norms):
    shape = Shape(kv_dtype, 6, 2, head_dim)
    qkv, rotation = inputs(rng, shape, rotary_dim)
    norms = {name: rng.uniform(0.5, 1.5, head_dim).astype(np.float32) for name in ("q_norm", "k_norm") if with_norms}
    q, kv = run(cpu, shape, qkv, rotation, norms)
    expected_q, expected_kv = run(ReferenceOperations(), shape, qkv, rotation, norms)
    assert_close(q, expected_q, np.abs(expected_q).max())
    written = np.sort(SLOTS[SLOTS >= 0])
    for slot in written:
        table = np.array([slot // BLOCK_SIZE] * NUM_BLOCKS)
        actual = read_tokens(kv, table, slot % BLOCK_SIZE, slot % BLOCK_SIZE + 1)
        expected = read_tokens(expected_kv, table, slot % BLOCK_SIZE, slot % BLOCK_SIZE + 1)
        for mine, theirs in zip(actual, expected, strict=True):
            assert_close(mine, theirs, np.abs(theirs).max(), EPS_OF_DTYPE[kv_dtype])


@pytest.mark.parametrize("kv_dtype", EPS_OF_DTYPE)
def test_rounds_as_the_reference_does(cpu, rng, kv_dtype):
    """V is neither normalised nor rotated, so its stored bytes must be equal."""
    shape = Shape(kv_dtype, 3, 1, 64)
    qkv, rotation = inputs(rng, shape, 64)
    _, kv = run(cpu, shape, qkv, rotation, {})
    _, expected = run(ReferenceOperations(), shape, qkv, rotation, {})
    for view in (1, 3):
        assert layer_views(kv)[view].tobytes() == layer_views(expected)[view].tobytes()


@pytest.mark.parametrize("kv_dtype", EPS_OF_DTYPE)
def test_writes_nothing_but_its_slots(cpu, rng, kv_dtype):
    shape = Shape(kv_dtype, 3, 3, 48)
    qkv, rotation = inputs(rng, shape, 48)
    _, kv = run(cpu, shape, qkv, rotation, {})
    untouched = poisoned_layer(shape, BLOCK_SIZE, NUM_BLOCKS, np.nan)
    assert kv.storage[:, : kv.layout.layer_bytes].tobytes() == untouched.storage[:, : kv.layout.layer_bytes].tobytes()
    for slot in set(range(NUM_BLOCKS * BLOCK_SIZE)) - set(SLOTS.tolist()):
        table = np.array([slot // BLOCK_SIZE] * NUM_BLOCKS)
        offset = slot % BLOCK_SIZE
        now, before = (read_tokens(layer, table, offset, offset + 1) for layer in (kv, untouched))
        np.testing.assert_array_equal(now, before)


def test_bits_do_not_depend_on_neighbours_or_threads(cpu_by_num_threads, rng):
    shape = Shape("fp32", 5, 5, 80)
    qkv, rotation = inputs(rng, shape, 40)
    weight = rng.uniform(0.5, 1.5, 80).astype(np.float32)
    together, kv = run(cpu_by_num_threads[1], shape, qkv, rotation, {"q_norm": weight, "k_norm": weight})
    for cpu in cpu_by_num_threads.values():
        again, same_kv = run(cpu, shape, qkv, rotation, {"q_norm": weight, "k_norm": weight})
        assert again.tobytes() == together.tobytes()
        assert same_kv.storage.tobytes() == kv.storage.tobytes()
        for row in range(len(SLOTS)):
            one, one_kv = qkv[row : row + 1].copy(), poisoned_layer(shape, BLOCK_SIZE, NUM_BLOCKS, np.nan)
            cpu.rope_and_store(
                one, rotation[row : row + 1], SLOTS[row : row + 1], one_kv, num_q_heads=5, q_norm=weight, k_norm=weight, eps=1e-6
            )
            assert one[:, : 5 * 80].tobytes() == together[row].tobytes()


def test_int8_of_zeros_and_of_tiny_values_is_finite(cpu):
    shape = Shape("int8", 1, 1, 16)
    qkv = np.zeros((2, shape.qkv_width), np.float32)
    qkv[1] = 1e-44
    _, kv = run(cpu, shape, qkv, np.zeros((2, 2, 8), np.float32), {})
    for slot in SLOTS[:2]:
        k, v = read_tokens(kv, np.array([slot // BLOCK_SIZE] * NUM_BLOCKS), slot % BLOCK_SIZE, slot % BLOCK_SIZE + 1)
        assert np.isfinite(k).all() and (np.abs(v) <= 2e-44).all()


def test_fp16_saturates_instead_of_storing_infinity(cpu):
    shape = Shape("fp16", 1, 1, 16)
    qkv = np.full((1, shape.qkv_width), 1e6, np.float32)
    _, kv = run(cpu, shape, qkv, np.stack([np.ones((1, 8)), np.zeros((1, 8))], axis=1).astype(np.float32), {})
    k, v = read_tokens(kv, np.array([2, 2, 2]), SLOTS[0] % BLOCK_SIZE, SLOTS[0] % BLOCK_SIZE + 1)
    assert (k == 65504).all() and (v == 65504).all()


@pytest.mark.parametrize("place", [0, 7, 8, 37, 63])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_int8_keeps_what_is_no_number(cpu, place, value):
    shape = Shape("int8", 1, 1, 64)
    qkv = np.ones((1, shape.qkv_width), np.float32)
    qkv[0, 2 * 64 + place] = value
    rotation = np.stack([np.ones((1, 32)), np.zeros((1, 32))], axis=1).astype(np.float32)
    for operations in (cpu, ReferenceOperations()):
        _, kv = run(operations, shape, qkv, rotation, {})
        with np.errstate(invalid="ignore"):  # 0 times an infinite scale
            k, v = read_tokens(kv, np.array([2, 2, 2]), SLOTS[0] % BLOCK_SIZE, SLOTS[0] % BLOCK_SIZE + 1)
        assert np.allclose(k, 1) and np.isnan(v).all()
