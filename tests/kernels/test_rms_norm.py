"""rms_norm of the C++ backend."""

import numpy as np
import pytest

from kernels.tolerance import assert_close

EPS = 1e-5


def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The definition in float64."""
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + EPS) * weight


@pytest.mark.parametrize("size", [1, 7, 8, 33, 64, 576, 640, 2047])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("accumulate", [False, True])
def test_agrees_with_the_definition(cpu, rng, size, scale, accumulate):
    x = (scale * rng.standard_normal((5, size))).astype(np.float32)
    weight = rng.standard_normal(size).astype(np.float32)
    out = rng.standard_normal((5, size)).astype(np.float32)
    expected = rms_norm(x, weight) + accumulate * out.astype(np.float64)
    norm = np.abs(expected) + np.abs(out)
    cpu.rms_norm(x, weight, out, eps=EPS, accumulate=accumulate)
    assert_close(out, expected, norm)


def test_row_does_not_depend_on_its_neighbours_threads_or_alignment(cpu_by_num_threads, rng):
    x = rng.standard_normal((17, 577)).astype(np.float32)
    weight = rng.standard_normal(577).astype(np.float32)
    together = np.empty_like(x)
    cpu_by_num_threads[1].rms_norm(x, weight, together, eps=EPS)
    for cpu in cpu_by_num_threads.values():
        for row in range(17):
            alone = np.empty((1, 577), np.float32)
            cpu.rms_norm(x[row : row + 1], weight, alone, eps=EPS)
            np.testing.assert_array_equal(alone[0], together[row])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((2, 4))}, "x: expected float32"),
        ({"weight": np.zeros(5, np.float32)}, r"weight: expected float32 \[4\], got \[5\]"),
        ({"out": np.zeros((3, 4), np.float32)}, r"out: expected float32 \[2, 4\], got \[3, 4\]"),
        ({"x": np.zeros((4, 2), np.float32).T}, "x: expected .* contiguous"),
        ({"out": np.frombuffer(bytes(32), np.float32).reshape(2, 4)}, "out: .* writable"),
    ],
)
def test_refuses_unfit_arrays_by_name(cpu, change, message):
    arrays = {"x": np.zeros((2, 4), np.float32), "weight": np.zeros(4, np.float32), "out": np.zeros((2, 4), np.float32)} | change
    with pytest.raises((TypeError, ValueError), match=message):
        cpu.rms_norm(arrays["x"], arrays["weight"], arrays["out"], eps=EPS)
