"""embed, rotary and copy_blocks of the C++ backend."""

import numpy as np
import pytest

from octavo.kernels.host_tensor import HostTensor
from octavo.kernels.reference import ReferenceOperations

REFERENCE = ReferenceOperations()


def pack(operations, values, weight_format):
    return operations.pack_weight([HostTensor("table", values.shape, "f32", values)], weight_format)


@pytest.mark.parametrize("weight_format", ["fp32", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 25.298221])
def test_embed(cpu, rng, weight_format, scale):
    table = rng.standard_normal((37, 72)).astype(np.float32)
    token_ids = np.array([36, 0, 5, 5, 17], np.int32)
    out, expected = np.empty((5, 72), np.float32), np.empty((5, 72), np.float32)
    cpu.embed(token_ids, pack(cpu, table, weight_format), out, scale=scale)
    REFERENCE.embed(token_ids, pack(REFERENCE, table, weight_format), expected, scale=scale)
    np.testing.assert_allclose(out, expected, rtol=2e-7)


@pytest.mark.parametrize("half_dim", [1, 20, 32, 64, 128])
def test_rotary_is_right_far_from_the_origin(cpu, half_dim):
    positions = np.array([0, 1, 511, 131_071, 10_000_019], np.int32)
    frequencies = 500_000.0 ** (-np.arange(half_dim) / half_dim)
    out = np.empty((5, 2, half_dim), np.float32)
    cpu.rotary(positions, frequencies, out, scale=1.25)
    angles = positions[:, None] * frequencies
    np.testing.assert_allclose(out[:, 0], 1.25 * np.cos(angles), rtol=2e-7, atol=1e-9)
    np.testing.assert_allclose(out[:, 1], 1.25 * np.sin(angles), rtol=2e-7, atol=1e-9)


def test_copy_blocks(cpu, rng):
    storage = rng.integers(0, 256, (12, 192), np.uint8)
    pairs = np.array([[0, 7], [3, 11], [0, 4]], np.int64)
    expected = storage.copy()
    expected[[7, 11, 4]] = storage[[0, 3, 0]]
    cpu.copy_blocks(storage, pairs)
    np.testing.assert_array_equal(storage, expected)


@pytest.mark.parametrize("pair", [[0, 4], [-1, 0]])
def test_copy_blocks_refuses_ids_outside_the_storage(cpu, pair):
    with pytest.raises(ValueError, match="pairs: block id outside storage"):
        cpu.copy_blocks(np.zeros((4, 64), np.uint8), np.array([pair], np.int64))
