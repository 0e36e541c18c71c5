"""Reading a GGUF header into a `ModelSpec`.

Owns: key names, and what GGUF leaves to the reader's knowledge of an architecture. Must not know: how a file is parsed.

Invariants:
1. A key that changes the arithmetic is honoured or refused by name.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.models.rotary import Rotary, YarnSettings, default_rotary, linear_rotary, yarn_attention_factor, yarn_rotary
from octavo.models.spec import ModelSpec, layer_windows, share_rotaries

DEFAULT_BASE = 10_000.0
# Sliding layers per cycle of layers, the last of which attends to everything; GGUF files may leave it out.
WINDOW_CYCLES = {"gemma2": 2, "gemma3": 6}
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
# Gemma's largest models scale queries by the width per head instead of the head's own; only the depth tells them apart.
GEMMA_WIDE_DEPTHS = {"gemma2": 46, "gemma3": 62}
# Keys (after the architecture's prefix) of which only "absent" or 0 is supported.
REFUSED_KEYS = (
    "expert_count",
    "attention.scale",
    "attention.max_alibi_bias",
    "attention.clamp_kqv",
    "attention.temperature_length",
    "rope.dimension_sections",
    "rope.scaling.yarn_log_multiplier",
)
MAX_LAYERS = 4096  # a damaged count must not become an allocation


@dataclass(frozen=True)
class Header:
    """A GGUF file's metadata under one architecture's prefix."""

    metadata: Mapping[str, Any]
    architecture: str

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or ``default``."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return f"{self.architecture}.{key}" in self.metadata

    def need(self, key: str) -> Any:
        """Returns the value of a key that has no default."""
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"the GGUF header has no key '{self.architecture}.{key}'")
        return value

    def uniform(self, key: str) -> int:
        """Returns a value that may be given per layer but must be the same in all."""
        distinct = set(np.ravel(self.need(key)).tolist())  # np.unique would load numpy's masked arrays
        if len(distinct) != 1:
            raise UnsupportedModelError(f"{self.architecture}.{key} differs between layers, which is not supported")
        return int(distinct.pop())


def from_gguf_metadata(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    """Returns the spec that a GGUF header describes.

    Args:
        metadata: the header's keys; arrays as lists or numpy arrays.
        tensor_names: the file's tensors: which biases and which output head there are is stated nowhere else.

    Raises:
        UnsupportedModelError: the architecture, or the value of a key, is not supported; the text names it.
        CheckpointError: a key without which there is no model is missing.
    """
    header = Header(metadata, read_architecture(metadata))
    refuse_unsupported(header)
    gemma = header.architecture in WINDOW_CYCLES
    num_layers, hidden = header.need("block_count"), header.need("embedding_length")
    if num_layers > MAX_LAYERS:
        raise CheckpointError(f"{header.architecture}.block_count is {num_layers}; no model has more than {MAX_LAYERS} layers")
    num_heads = header.uniform("attention.head_count")
    head_dim = header.get("attention.key_length") or hidden // num_heads
    full, sliding, max_position = read_rotaries(header, head_dim)
    sliding_layers = read_sliding_layers(header, num_layers)
    rotaries, layer_rotaries = share_rotaries(sliding_layers, full=full, sliding=sliding)
    wide = GEMMA_WIDE_DEPTHS.get(header.architecture) == num_layers
    return ModelSpec(
        architecture=header.architecture,
        vocab_size=header.get("vocab_size") or len(metadata.get("tokenizer.ggml.tokens", ())),
        hidden_size=hidden,
        intermediate_size=header.uniform("feed_forward_length"),
        num_layers=num_layers,
        num_q_heads=num_heads,
        num_kv_heads=header.uniform("attention.head_count_kv") if header.has("attention.head_count_kv") else num_heads,
        head_dim=head_dim,
        max_position=max_position,
        rms_norm_eps=header.need("attention.layer_norm_rms_epsilon"),
        windows=layer_windows(sliding_layers, header.get("attention.sliding_window"), max_position),
        rotaries=rotaries,
        layer_rotaries=layer_rotaries,
        query_scale=(hidden // num_heads if wide else head_dim) ** -0.5,
        activation="gelu_tanh" if gemma else "silu",
        sandwich_norm=gemma,
        qk_norm=header.architecture in ("qwen3", "gemma3"),
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        attention_soft_cap=header.get("attn_logit_softcapping", 0.0),
        final_soft_cap=header.get("final_logit_softcapping", 0.0),
        embedding_scale=hidden**0.5 if gemma else 1.0,
        tied_head="output.weight" not in tensor_names,
        begin_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        end_token_ids=read_end_tokens(metadata),
    )


def read_architecture(metadata: Mapping[str, Any]) -> str:
    """Returns the architecture's name in GGUF, which prefixes its keys."""
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(f"GGUF architecture {name!r} is not supported; supported are {', '.join(ARCHITECTURES)}")
    return name


def refuse_unsupported(header: Header) -> None:
    """Raises `UnsupportedModelError` for a key whose value asks for arithmetic that is not there."""
    for key in REFUSED_KEYS:
        if np.any(header.get(key, 0)):
            raise UnsupportedModelError(f"{header.architecture}.{key}={header.get(key)!r} is not supported")
    key_length, value_length = header.get("attention.key_length"), header.get("attention.value_length")
    if key_length != value_length:
        raise UnsupportedModelError(
            f"{header.architecture}.attention.value_length={value_length} must equal attention.key_length={key_length}"
        )


def read_sliding_layers(header: Header, num_layers: int) -> tuple[bool, ...]:
    """Returns for each layer whether its attention is limited to the window."""
    if not header.get("attention.sliding_window"):
        return (False,) * num_layers
    pattern = header.get("attention.sliding_window_pattern", WINDOW_CYCLES.get(header.architecture))
    if np.ndim(pattern):
        return tuple(bool(slides) for slides in pattern)
    return tuple(pattern is None or (layer + 1) % pattern != 0 for layer in range(num_layers))


def read_rotaries(header: Header, head_dim: int) -> tuple[Rotary, Rotary, int]:
    """Returns the rotation of full-attention layers, that of sliding layers, and the longest sequence that they serve."""
    rotary_dim, max_position = header.get("rope.dimension_count", head_dim), header.need("context_length")
    if rotary_dim != head_dim and header.architecture != "phi3":
        raise UnsupportedModelError(f"{header.architecture}.rope.dimension_count={rotary_dim} must equal the head's {head_dim}")
    base = header.get("rope.freq_base", DEFAULT_BASE)
    full = build_rotary(header, base, rotary_dim)
    original_length = header.get("rope.scaling.original_context_length")
    if header.architecture == "phi3" and original_length:
        max_position = min(max_position, original_length)
    if header.architecture != "gemma3":
        return full, full, max_position
    # Gemma 3 scales the rotation of its full-attention layers only.
    return full, default_rotary(header.get("rope.freq_base_swa", DEFAULT_BASE), rotary_dim), max_position


def build_rotary(header: Header, base: float, rotary_dim: int) -> Rotary:
    """Returns the rotation that the header describes; per-pair factors that are tensors are applied with the weights."""
    factor = header.get("rope.scaling.factor", 1.0)
    kind = header.get("rope.scaling.type", "none" if factor == 1.0 else "linear")
    attention_factor = header.get("rope.scaling.attn_factor", 1.0)
    if header.architecture == "phi3" and kind in ("none", "longrope"):
        return Rotary(default_rotary(base, rotary_dim).inverse_frequencies, attention_factor)
    if attention_factor != 1.0:
        raise UnsupportedModelError(f"{header.architecture}.rope.scaling.attn_factor={attention_factor} is not supported")
    match kind:
        case "none":
            return default_rotary(base, rotary_dim)
        case "linear":
            return linear_rotary(base, rotary_dim, factor=factor)
        case "yarn":
            settings = YarnSettings(
                factor=factor,
                original_length=header.get("rope.scaling.original_context_length") or header.need("context_length"),
                attention_factor=yarn_attention_factor(factor),
                beta_fast=header.get("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=header.get("rope.scaling.yarn_beta_slow", 1.0),
            )
            return yarn_rotary(base, rotary_dim, settings)
    raise UnsupportedModelError(f"{header.architecture}.rope.scaling.type={kind!r} is not supported")


def read_end_tokens(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the tokens that end a text or a turn, without repeats."""
    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return tuple(dict.fromkeys(i for i in ids if i is not None))
