"""Which tensors a model must have, what its files call them, and their shapes.

Owns: the tables of names. Must not know: file formats' bytes, packing.

Invariants:
1. Every part of `expected_tensors` is read exactly once by `octavo.models.weights`.
"""

from collections.abc import Collection
from dataclasses import dataclass

from octavo.errors import CheckpointError
from octavo.models.spec import ModelSpec

HF_EMBEDDING = "embed_tokens.weight"
# Where the decoder sits inside a checkpoint: alone, or as the text part of a multimodal model (old and new spelling).
HF_PREFIXES = ("model.", "language_model.model.", "model.language_model.")
HF_HEADS = {
    "model.": "lm_head.weight",
    "language_model.model.": "language_model.lm_head.weight",
    "model.language_model.": "lm_head.weight",
}
# Parts of multimodal checkpoints that text does not pass through, and frequencies that old checkpoints repeat.
HF_IGNORED_PARTS = ("vision_tower.", "multi_modal_projector.", "vision_model.")
HF_IGNORED_SUFFIX = ".rotary_emb.inv_freq"
# Corrections of the rotary frequencies that GGUF keeps as tensors.
GGUF_ROTARY_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")

# part of a layer -> (name in a Hugging Face checkpoint, name in GGUF), without the layer's prefix
LAYER_NAMES = {
    "attention_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "qkv": ("self_attn.qkv_proj.weight", "attn_qkv.weight"),
    "q_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "k_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "v_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "q_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "k_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "output": ("self_attn.o_proj.weight", "attn_output.weight"),
    "output_bias": ("self_attn.o_proj.bias", "attn_output.bias"),
    "mlp_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "gate_up": ("mlp.gate_up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
}
SANDWICH_NAMES = {
    "post_attention_norm": ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    "mlp_norm": ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    "post_mlp_norm": ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
}


@dataclass(frozen=True)
class TensorEntry:
    """One required tensor: its name in the file and its logical shape."""

    name: str
    shape: tuple[int, ...]


Part = tuple[int | None, str]  # (layer, part of the layer), or (None, "embedding" | "final_norm" | "head")


def expected_tensors(spec: ModelSpec, naming: str, names: Collection[str]) -> dict[Part, TensorEntry]:
    """Returns every tensor that must be present.

    Args:
        naming: "hf" or "gguf", as `TensorSource.naming`.
        names: the names in the file; only the prefix of a Hugging Face decoder is looked up among them.
    """
    prefix = hf_prefix(names) if naming == "hf" else ""
    layer_prefix = f"{prefix}layers." if naming == "hf" else "blk."
    column = 0 if naming == "hf" else 1
    layer_names = LAYER_NAMES | (SANDWICH_NAMES if spec.sandwich_norm else {})
    entries: dict[Part, TensorEntry] = {
        (None, part): TensorEntry(name, shape) for part, (name, shape) in outer_tensors(spec, naming, prefix).items()
    }
    for layer in range(spec.num_layers):
        for part, shape in layer_shapes(spec).items():
            entries[layer, part] = TensorEntry(f"{layer_prefix}{layer}.{layer_names[part][column]}", shape)
    return entries


def hf_prefix(names: Collection[str]) -> str:
    """Returns what the decoder's tensor names begin with."""
    for prefix in HF_PREFIXES:
        if prefix + HF_EMBEDDING in names:
            return prefix
    raise CheckpointError(f"the checkpoint has no embedding table: none of {[p + HF_EMBEDDING for p in HF_PREFIXES]} is in it")


def outer_tensors(spec: ModelSpec, naming: str, prefix: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns name and shape of the tensors outside the layers."""
    table, vector = (spec.vocab_size, spec.hidden_size), (spec.hidden_size,)
    if naming == "hf":
        tensors = {"embedding": (prefix + HF_EMBEDDING, table), "final_norm": (prefix + "norm.weight", vector)}
    else:
        tensors = {"embedding": ("token_embd.weight", table), "final_norm": ("output_norm.weight", vector)}
    if not spec.tied_head:
        tensors["head"] = (head_name(naming, prefix), table)
    return tensors


def head_name(naming: str, prefix: str) -> str:
    """Returns the output head's name in the file."""
    return HF_HEADS[prefix] if naming == "hf" else "output.weight"


def layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor of a layer, by part."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "output": (hidden, spec.q_width),
        "mlp_norm": (hidden,),
        "down": (hidden, inner),
    }
    if spec.architecture == "phi3":
        shapes |= {"qkv": (spec.qkv_width, hidden), "gate_up": (2 * inner, hidden)}
    else:
        shapes |= {"q": (spec.q_width, hidden), "k": (spec.kv_width, hidden), "v": (spec.kv_width, hidden)}
        shapes |= {"gate": (inner, hidden), "up": (inner, hidden)}
    if spec.qkv_bias:
        shapes |= {"q_bias": (spec.q_width,), "k_bias": (spec.kv_width,), "v_bias": (spec.kv_width,)}
    if spec.output_bias:
        shapes["output_bias"] = (hidden,)
    if spec.qk_norm:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.sandwich_norm:
        shapes |= {"post_attention_norm": (hidden,), "post_mlp_norm": (hidden,)}
    return shapes


def is_ignorable(name: str, spec: ModelSpec, naming: str) -> bool:
    """Whether a tensor outside `expected_tensors` may be there without changing what the model computes."""
    if naming == "gguf":
        return name in GGUF_ROTARY_FACTORS
    tied_copy = spec.tied_head and name in HF_HEADS.values()
    return tied_copy or name.endswith(HF_IGNORED_SUFFIX) or name.removeprefix("model.").startswith(HF_IGNORED_PARTS)
