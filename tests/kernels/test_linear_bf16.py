"""The products of bf16 by instructions for them: the bits that Intel's manual says, on tiles or vectors, emulated or not.

The other tests of this folder run on them too, as on every instruction set.
"""

from pathlib import Path

import numpy as np
import pytest

from kernels.test_linear import normal, product
from kernels.weight_cases import dense_tensor
from octavo import _cpu
from octavo.kernels.cpu import CpuOperations, instruction_sets
from octavo.kernels.rounding import bf16_bits, bf16_values

TILE_SETS = [name for name in instruction_sets() if name.endswith("_amx")]
VECTOR_SETS = [name for name in instruction_sets() if name == "emulated512"]


@pytest.fixture(scope="module")
def ops(request):
    return CpuOperations(2, instruction_set=request.param)


def as_bf16(values: np.ndarray) -> np.ndarray:
    return bf16_values(bf16_bits(values))


def tdpbf16ps(sums: np.ndarray, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the sums and the products of 32 inputs, ``x [rows, 32]`` and ``weights [outputs, 32]``, as the manual adds them.

    Even and odd inputs are two chains of fused multiply-adds. A product of two bf16 is exact in float32 while it is a normal
    number, so that rounding its sum is what a fused multiply-add does.
    """
    chains = np.zeros((2, *sums.shape), np.float32)
    for k in range(32):
        chains[k % 2] += x[:, k, None] * weights[None, :, k]
    return sums + (chains[0] + chains[1])


@pytest.mark.parametrize("ops", TILE_SETS, indirect=True)
@pytest.mark.parametrize("num_rows", [1, 15, 16, 17, 33, 48, 96, 97])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(32, 32), (70, 416), (33, 799)])
def test_tiles_are_added_as_the_manual_says(ops, rng, num_rows, num_outputs, num_inputs):
    x = rng.standard_normal((num_rows, num_inputs)).astype(np.float32)
    weights = as_bf16(rng.standard_normal((num_outputs, num_inputs)).astype(np.float32))
    padding = ((0, 0), (0, -num_inputs % 32))
    padded_x, padded_weights = np.pad(as_bf16(x), padding), np.pad(weights, padding)
    expected = np.zeros((num_rows, num_outputs), np.float32)
    for first in range(0, padded_x.shape[1], 32):
        expected = tdpbf16ps(expected, padded_x[:, first : first + 32], padded_weights[:, first : first + 32])
    packed = ops.pack_weight([dense_tensor(weights)], "bf16")
    assert product(ops, x, packed).tobytes() == expected.tobytes()


@pytest.mark.parametrize("ops", VECTOR_SETS, indirect=True)
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(32, 32), (70, 416), (33, 798)])
def test_of_each_pair_in_a_vector_the_second_is_added_first(ops, rng, num_outputs, num_inputs):
    x = as_bf16(normal(rng, 13, num_inputs))
    weights = as_bf16(normal(rng, num_outputs, num_inputs))
    expected = np.zeros((13, num_outputs), np.float32)
    for first in range(0, num_inputs, 2):
        for k in (first + 1, first):  # a product of two bf16 is exact, so that each step rounds once
            expected += x[:, k, None] * weights[None, :, k]
    assert product(ops, x, ops.pack_weight([dense_tensor(weights)], "bf16")).tobytes() == expected.tobytes()


@pytest.mark.parametrize("ops", TILE_SETS + VECTOR_SETS, indirect=True)
@pytest.mark.parametrize(
    ("exponent_of_x", "exponent_of_weight", "exponent_of_sum"),
    [(-126, 0, -120), (-60, -66, -120), (-60, -67, None), (-127, 60, None), (60, -127, None)],
    ids=["normal", "smallest product", "product too small", "input too small", "weight too small"],
)
def test_numbers_below_the_normal_ones_count_as_zero(ops, exponent_of_x, exponent_of_weight, exponent_of_sum):
    weights = np.full((32, 64), 2.0**exponent_of_weight, np.float32)
    out = product(ops, np.full((3, 64), 2.0**exponent_of_x, np.float32), ops.pack_weight([dense_tensor(weights)], "bf16"))
    assert (out == (0 if exponent_of_sum is None else 2.0**exponent_of_sum)).all()


def test_the_extension_multiplies_inputs_by_weights_into_sums():
    # Nothing here may be able to run them, so the bytes are compared: tdpbf16ps with the sums (tiles 0 to 3) in ModRM.reg,
    # the inputs (6 and 7) in ModRM.rm and the weights (4 and 5), inverted, in VEX.vvvv.
    binary = Path(_cpu.__file__).read_bytes()
    if b"avx512_amx" not in binary:
        pytest.skip("built for another processor, or by a compiler that does not know AMX")
    for sums, inputs, weights in ((0, 6, 4), (1, 6, 5), (2, 7, 4), (3, 7, 5)):
        assert bytes([0xC4, 0xE2, (~weights & 15) << 3 | 0b010, 0x5C, 0b11 << 6 | sums << 3 | inputs]) in binary
