"""gated_activation and the vector functions behind it."""

import numpy as np
import pytest

from kernels.tolerance import assert_close
from octavo.kernels.reference import ReferenceOperations

REFERENCE = ReferenceOperations()
ACTIVATIONS = ("silu", "gelu_tanh")


def activate(operations, gate, up, activation):
    out = np.empty_like(up)
    operations.gated_activation(np.concatenate([gate, up], axis=1), out, activation=activation)
    return out


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [1, 7, 16, 255, 256, 257, 1536])
def test_agrees_with_the_reference(cpu, rng, activation, size):
    gate = (4 * rng.standard_normal((3, size))).astype(np.float32)
    up = rng.standard_normal((3, size)).astype(np.float32)
    expected = activate(REFERENCE, gate, up, activation)
    assert_close(activate(cpu, gate, up, activation), expected, norm=np.abs(gate * up))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_extreme_gates_stay_finite(cpu, activation):
    gate = np.array([[-3e38, -1e4, -120, -88.8, -88.7, -0.0, 0.0, 1e-38, 88.8, 120, 1e12]], np.float32)
    out = activate(cpu, gate, np.ones_like(gate), activation)
    assert np.all(np.isfinite(out))
    np.testing.assert_array_equal(out[0, -3:], gate[0, -3:])
    assert np.all(np.abs(out[0, :4]) < 1e-30)


def test_silu_of_nan_is_nan(cpu):
    gate = np.array([[np.nan, 1.0]], np.float32)
    out = activate(cpu, gate, np.ones_like(gate), "silu")
    assert np.isnan(out[0, 0])
    assert np.isfinite(out[0, 1])


def test_exp_is_within_two_units_in_the_last_place(cpu):
    # silu(x) = x / (1 + e^-x): for x far below zero, silu(x) / x is e^x to one more rounding.
    gate = np.linspace(-87, -17, 200_001, dtype=np.float32)[None]
    ratio = activate(cpu, gate, 1 / gate, "silu").astype(np.float64)
    exact = np.exp(gate.astype(np.float64))
    assert np.max(np.abs(ratio / exact - 1)) < 6 * 2.0**-24


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_element_does_not_depend_on_its_place(cpu_by_num_threads, rng, activation):
    gate = rng.standard_normal((5, 600)).astype(np.float32)
    together = activate(cpu_by_num_threads[1], gate, gate, activation)
    for cpu in cpu_by_num_threads.values():
        for start in (0, 1, 5, 255, 257):
            piece = gate[2:4, start : start + 300]
            np.testing.assert_array_equal(activate(cpu, piece, piece, activation), together[2:4, start : start + 300])


def test_unknown_activation_is_refused(cpu):
    with pytest.raises(ValueError, match="relu"):
        activate(cpu, np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32), "relu")
