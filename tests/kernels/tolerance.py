"""How far a float32 kernel may lie from a float64 reference: stated once for all kernel tests."""

import numpy as np

# The error of a fixed-order float32 sum grows with its length, but far slower than its bound: 8 covers every length tested.
ERROR_FACTOR = 8.0


def assert_close(actual: np.ndarray, expected: np.ndarray, norm: float | np.ndarray, eps: float = 2.0**-23) -> None:
    """Asserts ``|actual - expected| <= c * eps * norm`` elementwise, where ``norm`` is the size of the inputs.

    Args:
        norm: what an element's error scales with, e.g. the sum of |x * w| for a dot product; broadcast against ``expected``.
        eps: the rounding unit of the narrowest type on the way.
    """
    error = np.abs(actual.astype(np.float64) - expected)
    allowed = ERROR_FACTOR * eps * np.broadcast_to(norm, expected.shape)
    worst = np.unravel_index(np.argmax(error - allowed), error.shape)
    assert np.all(error <= allowed), f"at {worst}: got {actual[worst]}, expected {expected[worst]}, allowed error {allowed[worst]}"
