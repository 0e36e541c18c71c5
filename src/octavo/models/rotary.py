"""Rotary position embeddings: from a model's settings to inverse frequencies.

Owns: the frequency formulas. Must not know: where settings are written, or positions of a running step.

Invariants:
1. The rotation of a position is a pure function of that position. The two schemes that would make it depend on the length of
   the batch, dynamic NTK and LongRoPE, are served up to the original length only, where they do not depend on it.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rotary:
    """One kind of rotation.

    Attributes:
        inverse_frequencies: radians per position of each pair, ``rotary_dim / 2`` of them.
        scale: factor on every cosine and sine (the attention factor of YaRN and LongRoPE).
    """

    inverse_frequencies: tuple[float, ...]
    scale: float = 1.0

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that are rotated."""
        return 2 * len(self.inverse_frequencies)


def default_rotary(base: float, rotary_dim: int) -> Rotary:
    """Returns frequencies ``base ** (-2 i / rotary_dim)``; dynamic NTK is the same up to its original length."""
    return Rotary(tuple(base ** (-i / rotary_dim) for i in range(0, rotary_dim, 2)))


def linear_rotary(base: float, rotary_dim: int, *, factor: float) -> Rotary:
    """Returns frequencies of positions divided by ``factor``."""
    return Rotary(tuple(f / factor for f in default_rotary(base, rotary_dim).inverse_frequencies))


def llama3_rotary(
    base: float, rotary_dim: int, *, factor: float, low_freq_factor: float, high_freq_factor: float, original_length: int
) -> Rotary:
    """Returns Llama 3.1's: long wavelengths are stretched by ``factor``, short ones kept, those between blended."""

    def scaled(frequency: float) -> float:
        turns = original_length * frequency / (2 * math.pi)  # over the original length
        blend = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        blend = min(1.0, max(0.0, blend))
        return (1 - blend) * frequency / factor + blend * frequency

    return Rotary(tuple(scaled(f) for f in default_rotary(base, rotary_dim).inverse_frequencies))


@dataclass(frozen=True)
class YarnSettings:
    """What YaRN (Peng et al., 2023) is tuned by.

    Attributes:
        factor: stretch of the context.
        original_length: tokens of the context that the model was trained on.
        beta_fast, beta_slow: turns over the original length above which a pair is kept, below which it is stretched in full.
        attention_factor: factor on cosines and sines.
        truncate: whether the bounds of the ramp are rounded outwards to whole pairs.
    """

    factor: float
    original_length: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


def yarn_rotary(base: float, rotary_dim: int, yarn: YarnSettings) -> Rotary:
    """Returns YaRN's frequencies: kept for fast pairs, divided by the factor for slow ones, a linear ramp between."""

    def pair_with_turns(turns: float) -> float:
        return rotary_dim * math.log(yarn.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_with_turns(yarn.beta_fast), pair_with_turns(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = high - low if high != low else 0.001  # the ramp becomes a step

    def blended(pair: int, frequency: float) -> float:
        stretched = min(1.0, max(0.0, (pair - low) / width))
        return stretched * frequency / yarn.factor + (1 - stretched) * frequency

    frequencies = default_rotary(base, rotary_dim).inverse_frequencies
    return Rotary(tuple(blended(pair, f) for pair, f in enumerate(frequencies)), yarn.attention_factor)


def yarn_attention_factor(factor: float, *, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """Returns YaRN's attention factor where the model's settings do not state one."""

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)


def longrope_rotary(base: float, rotary_dim: int, *, short_factors: tuple[float, ...], attention_factor: float) -> Rotary:
    """Returns LongRoPE's frequencies up to the original length: each divided by its own short factor."""
    frequencies = default_rotary(base, rotary_dim).inverse_frequencies
    return Rotary(tuple(f / s for f, s in zip(frequencies, short_factors, strict=True)), attention_factor)


def longrope_attention_factor(factor: float, original_length: int) -> float:
    """Returns LongRoPE's attention factor where the model's settings do not state one."""
    return math.sqrt(1 + math.log(factor) / math.log(original_length)) if factor > 1 else 1.0
