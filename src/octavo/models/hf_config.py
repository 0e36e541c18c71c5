"""Reading a Hugging Face ``config.json`` into a `ModelSpec`.

Owns: field names, their defaults per architecture, and the refusal of what is not supported. Must not know: files, weights.

Invariants:
1. A field that changes the arithmetic is honoured or refused by name; nothing falls back silently.
2. A field that is absent has the value that the transformers library gives it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.models.hf_rope import read_rotaries
from octavo.models.spec import ModelSpec, layer_windows, share_rotaries

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """How one ``model_type`` is read.

    Attributes:
        architecture: `ModelSpec.architecture`.
        classes: values of ``architectures`` that are this decoder with a language-model head.
        defaults: the values of absent fields, beyond `COMMON_DEFAULTS`.
        gemma: soft-caps, scaled embeddings, sandwich norms that store ``w`` for ``1 + w``.
        qk_norm: q and k heads are normalised.
        qkv_bias: q, k and v always have biases.
        honours_attention_bias: ``attention_bias`` adds biases to all four projections.
    """

    architecture: str
    classes: tuple[str, ...]
    defaults: Config
    gemma: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    honours_attention_bias: bool = False


COMMON_DEFAULTS: Config = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}
QWEN_DEFAULTS: Config = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
GEMMA_DEFAULTS: Config = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
GEMMA2_DEFAULTS: Config = GEMMA_DEFAULTS | {
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window_pattern": 2,
}
GEMMA3_DEFAULTS: Config = GEMMA_DEFAULTS | {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window_pattern": 6,
}
MISTRAL_DEFAULTS: Config = {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072}

GEMMA3_CLASSES = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", ("LlamaForCausalLM",), {"max_position_embeddings": 2048}, honours_attention_bias=True),
    "mistral": Family("mistral", ("MistralForCausalLM",), MISTRAL_DEFAULTS),
    "qwen2": Family("qwen2", ("Qwen2ForCausalLM",), QWEN_DEFAULTS, qkv_bias=True),
    "qwen3": Family("qwen3", ("Qwen3ForCausalLM",), QWEN_DEFAULTS | {"head_dim": 128}, qk_norm=True, honours_attention_bias=True),
    "gemma2": Family("gemma2", ("Gemma2ForCausalLM",), GEMMA2_DEFAULTS, gemma=True, honours_attention_bias=True),
    "gemma3_text": Family("gemma3", GEMMA3_CLASSES, GEMMA3_DEFAULTS, gemma=True, qk_norm=True, honours_attention_bias=True),
    "phi3": Family("phi3", ("Phi3ForCausalLM",), {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096}),
}
# Fields of which only "absent", null, false or 0 is supported, whatever the architecture.
REFUSED_FIELDS = (
    "quantization_config",
    "mlp_bias",
    "use_bidirectional_attention",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "cross_attention_layers",
    "no_rope_layers",
    "attention_chunk_size",
)
MAX_SIZE, MAX_LAYERS = 2**31, 10_000
ACTIVATION_NAMES = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# Fields of a multimodal config that hold for its text part, over what text_config says.
OUTER_FIELDS = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config")
LAYER_TYPES = ("full_attention", "sliding_attention")


def from_hf_config(config: Config) -> ModelSpec:
    """Returns the spec that a parsed ``config.json`` describes.

    Raises:
        UnsupportedModelError: the architecture, or the value of a field, is not supported; the text names it.
        CheckpointError: a field without which there is no model is missing.
    """
    family, config = find_family(config)
    config = COMMON_DEFAULTS | family.defaults | config
    refuse_unsupported(family, config)
    num_heads = required(config, "num_attention_heads")
    head_dim = config.get("head_dim") or required(config, "hidden_size") // num_heads
    required(config, "max_position_embeddings")
    full, sliding, max_position = read_rotaries(family.architecture, config, head_dim)
    sliding_layers = read_sliding_layers(family.architecture, config)
    rotaries, layer_rotaries = share_rotaries(sliding_layers, full=full, sliding=sliding)
    biased = bool(config.get("attention_bias"))
    return ModelSpec(
        architecture=family.architecture,
        vocab_size=required(config, "vocab_size"),
        hidden_size=required(config, "hidden_size"),
        intermediate_size=required(config, "intermediate_size"),
        num_layers=len(sliding_layers),
        num_q_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        max_position=max_position,
        rms_norm_eps=config["rms_norm_eps"],
        windows=layer_windows(sliding_layers, config.get("sliding_window"), max_position),
        rotaries=rotaries,
        layer_rotaries=layer_rotaries,
        query_scale=(config["query_pre_attn_scalar"] if family.gemma else head_dim) ** -0.5,
        activation=read_activation(family, config),
        sandwich_norm=family.gemma,
        norm_weight_offset=1.0 if family.gemma else 0.0,
        qk_norm=family.qk_norm,
        qkv_bias=family.qkv_bias or biased,
        output_bias=biased,
        attention_soft_cap=(config.get("attn_logit_softcapping") or 0.0) if family.gemma else 0.0,
        final_soft_cap=(config.get("final_logit_softcapping") or 0.0) if family.gemma else 0.0,
        embedding_scale=config["hidden_size"] ** 0.5 if family.gemma else 1.0,
        tied_head=bool(config["tie_word_embeddings"]),
        begin_token_id=config.get("bos_token_id"),
        end_token_ids=token_ids(config.get("eos_token_id")),
    )


def find_family(config: Config) -> tuple[Family, Config]:
    """Returns the family and the fields of the text decoder; a multimodal model's are nested in ``text_config``."""
    model_type, classes = config.get("model_type"), config.get("architectures") or ()
    if model_type == "gemma3" and "text_config" in config:
        outer = {name: value for name, value in config.items() if name in OUTER_FIELDS and value is not None}
        config, model_type = {**config["text_config"], **outer}, "gemma3_text"
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise UnsupportedModelError(f"model_type {model_type!r} is not supported; supported are {', '.join(FAMILIES)}")
    unknown = [name for name in classes if name not in family.classes]
    if unknown:
        raise UnsupportedModelError(f"architectures {unknown} are not supported; for {model_type} it must be {family.classes[0]!r}")
    return family, config


def refuse_unsupported(family: Family, config: Config) -> None:
    """Raises `UnsupportedModelError` for a field whose value asks for arithmetic that is not there."""
    refused = [*REFUSED_FIELDS, *(() if family.honours_attention_bias else ("attention_bias",))]
    for name in refused:
        if config.get(name):
            raise UnsupportedModelError(f"{name}={short(config[name])} is not supported for {family.architecture}")
    if family.architecture == "mistral" and len(set(config.get("layer_types") or ())) > 1:
        raise UnsupportedModelError("layer_types of more than one kind are not supported for mistral")


def read_sliding_layers(architecture: str, config: Config) -> tuple[bool, ...]:
    """Returns for each layer whether its attention is limited to the window."""
    num_layers, window = required(config, "num_hidden_layers"), config.get("sliding_window")
    if architecture == "llama" or (architecture in ("mistral", "phi3") and window is None):
        return (False,) * num_layers
    if architecture in ("mistral", "phi3"):
        return (True,) * num_layers
    layer_types = config.get("layer_types")
    if layer_types is not None:
        return listed_sliding_layers(layer_types, num_layers)
    if architecture in ("qwen2", "qwen3"):
        slides = config["use_sliding_window"] and window is not None
        return tuple(bool(slides) and layer >= config["max_window_layers"] for layer in range(num_layers))
    return tuple((layer + 1) % config["sliding_window_pattern"] != 0 for layer in range(num_layers))


def listed_sliding_layers(layer_types: list[str], num_layers: int) -> tuple[bool, ...]:
    """Returns the same where the config lists every layer."""
    for layer_type in layer_types:
        if layer_type not in LAYER_TYPES:
            raise UnsupportedModelError(f"layer type {layer_type!r} is not supported; supported are {', '.join(LAYER_TYPES)}")
    if len(layer_types) != num_layers:
        raise UnsupportedModelError(f"layer_types lists {len(layer_types)} layers, num_hidden_layers is {num_layers}")
    return tuple(layer_type == "sliding_attention" for layer_type in layer_types)


def read_activation(family: Family, config: Config) -> str:
    """Returns the operations' name of the activation."""
    field = "hidden_activation" if family.gemma else "hidden_act"
    name = config[field]
    if name not in ACTIVATION_NAMES:
        raise UnsupportedModelError(f"{field}={name!r} is not supported; supported are {', '.join(ACTIVATION_NAMES)}")
    return ACTIVATION_NAMES[name]


def required(config: Config, name: str) -> int:
    """Returns a size that must be there."""
    value = config.get(name)
    if value is None:
        raise CheckpointError(f"config.json has no {name!r}")
    if type(value) is not int or value < 1:
        raise CheckpointError(f"config.json has {name}={short(value)}; it must be a positive integer")
    if value > (MAX_LAYERS if name == "num_hidden_layers" else MAX_SIZE):
        raise CheckpointError(f"config.json has {name}={short(value)}; no model is that large")
    return value


def token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """Returns a field that holds one id, a list of them, or nothing."""
    return tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)


def short(value: object) -> str:
    """Returns the value as text, cut for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
