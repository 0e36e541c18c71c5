"""The emulated dot product of bf16: the bits that Intel's manual says, as it stands for processors that have the instruction."""

import numpy as np
import pytest

from kernels.test_linear import normal, product
from kernels.weight_cases import dense_tensor
from octavo.kernels.cpu import CpuOperations, instruction_sets
from octavo.kernels.rounding import bf16_bits, bf16_values


@pytest.fixture(scope="module", params=[name for name in instruction_sets() if name == "emulated512"])
def ops(request):
    return CpuOperations(2, instruction_set=request.param)


def as_bf16(values: np.ndarray) -> np.ndarray:
    return bf16_values(bf16_bits(values))


@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(32, 32), (70, 416), (33, 798)])
def test_of_each_pair_of_inputs_the_second_is_added_first(ops, rng, num_outputs, num_inputs):
    x = as_bf16(normal(rng, 13, num_inputs))
    weights = as_bf16(normal(rng, num_outputs, num_inputs))
    expected = np.zeros((13, num_outputs), np.float32)
    for first in range(0, num_inputs, 2):
        for k in (first + 1, first):  # a product of two bf16 is exact, so that each step rounds once
            expected += x[:, k, None] * weights[None, :, k]
    assert product(ops, x, ops.pack_weight([dense_tensor(weights)], "bf16")).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("exponent_of_x", "exponent_of_weight", "exponent_of_sum"),
    [(-126, 0, -120), (-60, -66, -120), (-60, -67, None), (-127, 60, None), (60, -127, None)],
    ids=["normal", "smallest product", "product too small", "input too small", "weight too small"],
)
def test_numbers_below_the_normal_ones_count_as_zero(ops, exponent_of_x, exponent_of_weight, exponent_of_sum):
    weights = np.full((32, 64), 2.0**exponent_of_weight, np.float32)
    out = product(ops, np.full((3, 64), 2.0**exponent_of_x, np.float32), ops.pack_weight([dense_tensor(weights)], "bf16"))
    assert (out == (0 if exponent_of_sum is None else 2.0**exponent_of_sum)).all()
