"""Reading the rotary settings of a ``config.json``.

Owns: where the settings lie (older configs: ``rope_theta`` and ``rope_scaling``; newer ones: ``rope_parameters``, possibly one
set per layer type) and which kinds are supported. Must not know: the frequency formulas (`octavo.models.rotary`).

Invariants:
1. A kind or a key that is not known is refused by name.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.models.rotary import (
    Rotary,
    YarnSettings,
    default_rotary,
    linear_rotary,
    llama3_rotary,
    longrope_attention_factor,
    longrope_rotary,
    yarn_attention_factor,
    yarn_rotary,
)

Settings = Mapping[str, Any]

DEFAULT_BASE = 10_000.0
GEMMA3_FULL_BASE = 1_000_000.0
KNOWN_KEYS = frozenset(
    {
        *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
        *("low_freq_factor", "high_freq_factor", "short_factor", "long_factor"),
        *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    }
)
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
PHI3_LONGROPE_NAMES = ("su", "yarn")  # what early Phi-3 configs called LongRoPE


def read_rotaries(architecture: str, config: Settings, head_dim: int) -> tuple[Rotary, Rotary, int]:
    """Returns the rotation of full-attention layers, that of sliding layers, and the longest sequence that they serve."""
    full, sliding = layer_type_settings(architecture, config)
    max_position = config["max_position_embeddings"]
    lengths = [served_length(settings, max_position) for settings in (full, sliding)]
    return build_rotary(full, head_dim), build_rotary(sliding, head_dim), min(lengths)


def layer_type_settings(architecture: str, config: Settings) -> tuple[Settings, Settings]:
    """Returns complete settings for full-attention layers and for sliding ones."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    base = config.get("rope_theta")
    if "full_attention" in given or "sliding_attention" in given:
        full, sliding = given.get("full_attention") or {}, given.get("sliding_attention") or {}
    else:
        full, sliding = given, {} if architecture == "gemma3" else given
    if architecture == "gemma3":
        bases = (base or GEMMA3_FULL_BASE, config.get("rope_local_base_freq") or DEFAULT_BASE)
    else:
        bases = (base or DEFAULT_BASE,) * 2
    return complete(architecture, config, full, bases[0]), complete(architecture, config, sliding, bases[1])


def complete(architecture: str, config: Settings, given: Settings, base: float) -> Settings:
    """Returns ``given`` with absent settings filled in from the rest of the config."""
    unknown = sorted(given.keys() - KNOWN_KEYS)
    if unknown:
        raise UnsupportedModelError(f"rotary setting {unknown[0]!r} is not supported")
    rope_type = given.get("rope_type") or given.get("type") or "default"
    if architecture == "phi3" and rope_type in PHI3_LONGROPE_NAMES:
        rope_type = "longrope"
    if rope_type not in ROPE_TYPES:
        raise UnsupportedModelError(f"rope_type {rope_type!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    partial = given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0 and architecture != "phi3":
        raise UnsupportedModelError(f"partial_rotary_factor={partial} is not supported for {architecture}")
    original_length = config.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
    filled = {
        "rope_type": rope_type,
        "rope_theta": given.get("rope_theta") or base,
        "partial_rotary_factor": partial,
        "original_max_position_embeddings": original_length or config["max_position_embeddings"],
    }
    filled = {**given, **filled}
    if rope_type in ("yarn", "longrope") and filled.get("factor") is None:
        filled["factor"] = config["max_position_embeddings"] / filled["original_max_position_embeddings"]
    return filled


def served_length(settings: Settings, max_position: int) -> int:
    """Returns the longest sequence for which the rotation is a function of the position alone."""
    original_length = settings["original_max_position_embeddings"]
    if settings["rope_type"] == "longrope":
        return min(max_position, original_length)
    if settings["rope_type"] == "yarn":
        return max(max_position, int(original_length * settings["factor"]))
    return max_position


def build_rotary(settings: Settings, head_dim: int) -> Rotary:
    """Returns the rotation that complete settings describe."""
    base, rotary_dim = settings["rope_theta"], int(head_dim * settings["partial_rotary_factor"])
    match settings["rope_type"]:
        case "linear":
            return linear_rotary(base, rotary_dim, factor=needed(settings, "factor"))
        case "llama3":
            return llama3_rotary(
                base,
                rotary_dim,
                factor=needed(settings, "factor"),
                low_freq_factor=needed(settings, "low_freq_factor"),
                high_freq_factor=needed(settings, "high_freq_factor"),
                original_length=settings["original_max_position_embeddings"],
            )
        case "yarn":
            return yarn_rotary(base, rotary_dim, read_yarn(settings))
        case "longrope":
            return read_longrope(settings, base, rotary_dim)
        case _:  # "default", and "dynamic" within max_position_embeddings
            return default_rotary(base, rotary_dim)


def read_yarn(settings: Settings) -> YarnSettings:
    """Returns YaRN's settings with the paper's values where the config is silent."""
    factor, attention_factor = settings["factor"], settings.get("attention_factor")
    if attention_factor is None:
        attention_factor = yarn_attention_factor(
            factor, mscale=settings.get("mscale"), mscale_all_dim=settings.get("mscale_all_dim")
        )
    truncate = settings.get("truncate")
    return YarnSettings(
        factor=factor,
        original_length=settings["original_max_position_embeddings"],
        attention_factor=attention_factor,
        beta_fast=settings.get("beta_fast") or 32.0,
        beta_slow=settings.get("beta_slow") or 1.0,
        truncate=True if truncate is None else truncate,
    )


def read_longrope(settings: Settings, base: float, rotary_dim: int) -> Rotary:
    """Returns LongRoPE's rotation up to the original length."""
    short_factors, attention_factor = tuple(needed(settings, "short_factor")), settings.get("attention_factor")
    if len(short_factors) != rotary_dim // 2:
        raise CheckpointError(
            f"short_factor has {len(short_factors)} values; a rotary dimension of {rotary_dim} needs {rotary_dim // 2}"
        )
    if attention_factor is None:
        attention_factor = longrope_attention_factor(settings["factor"], settings["original_max_position_embeddings"])
    return longrope_rotary(base, rotary_dim, short_factors=short_factors, attention_factor=attention_factor)


def needed(settings: Settings, name: str) -> Any:
    """Returns a setting that its kind of rotation cannot do without."""
    if settings.get(name) is None:
        raise CheckpointError(f"the rotary settings of type {settings['rope_type']!r} have no {name!r}")
    return settings[name]
