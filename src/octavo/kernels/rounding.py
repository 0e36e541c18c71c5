"""Rounding float32 to bfloat16 and back: numpy has no such type.

Owns: the bits. Must not know: what the numbers are for.
"""

import numpy as np


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Returns the bfloat16 bits (uint16) of float32 ``values``, rounded to nearest, ties to even; a NaN stays a quiet NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), (bits >> 16).astype(np.uint16) | np.uint16(0x0040), rounded)


def bf16_values(bits: np.ndarray) -> np.ndarray:
    """Returns the float32 values of bfloat16 ``bits``."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
