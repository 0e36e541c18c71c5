"""From a parsed config.json to a `PlanSpec`.

Owns: which reader serves which ``model_type``, nesting, and the stored weight format. Must not know: where the config came from.

Invariants:
1. A model that the engine runs is read by the engine's own reader; the planner's own readers serve only the others.
2. An architecture that is in neither list is refused by name.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.models.hf_config import FAMILIES, from_hf_config
from octavo.planner.config_fields import Fields
from octavo.planner.engine_models import plan_spec
from octavo.planner.expert_families import (
    read_deepseek_v3,
    read_dense,
    read_gemma3n,
    read_glm4_moe,
    read_gpt_oss,
    read_minimax_m2,
    read_mistral4,
    read_mixtral,
    read_opt,
    read_qwen3_moe,
)
from octavo.planner.plan_spec import PlanSpec
from octavo.planner.recurrent_families import read_granite_hybrid, read_nemotron_h, read_qwen3_5, read_qwen3_next

READERS: Mapping[str, Callable[[Fields], PlanSpec]] = {
    "mixtral": read_mixtral,
    "qwen3_moe": read_qwen3_moe,
    "gpt_oss": read_gpt_oss,
    "glm4_moe": read_glm4_moe,
    "deepseek_v3": read_deepseek_v3,
    "gemma3n_text": read_gemma3n,
    "opt": read_opt,
    "minimax_m2": read_minimax_m2,
    "mistral4": read_mistral4,
    "ministral3": read_dense,
    "seed_oss": read_dense,
    "qwen3_next": read_qwen3_next,
    "qwen3_5_text": read_qwen3_5,
    "qwen3_5_moe_text": read_qwen3_next,
    "nemotron_h": read_nemotron_h,
    "granitemoehybrid": read_granite_hybrid,
}
NESTED_TYPES = {  # multimodal model -> the text decoders that it may hold
    "gemma3n": ("gemma3n_text",),
    "qwen3_5": ("qwen3_5_text",),
    "qwen3_5_moe": ("qwen3_5_moe_text",),
    "mistral3": ("mistral", "ministral3", "mistral4"),
}
QUANTISATION_METHODS = {"mxfp4": "mxfp4", "fp8": "fp8", "compressed-tensors": None, "modelopt": None}


def read_plan_spec(config: Mapping[str, Any]) -> PlanSpec:
    """Returns the planner's view of a model.

    Raises:
        UnsupportedModelError: the architecture or a field is not known; the text names it.
        CheckpointError: a field is missing.
    """
    stored_format = read_stored_format(config)
    config = {name: value for name, value in config.items() if name != "quantization_config"}
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnsupportedModelError(f"model_type {model_type!r} is not known: it is no text")
    nested = config.get("text_config")
    if isinstance(nested, Mapping) and model_type in NESTED_TYPES:
        allowed = NESTED_TYPES[model_type]
        config, model_type = nested, nested.get("model_type", allowed[0])
        if model_type not in allowed:
            raise UnsupportedModelError(f"a text_config of model_type {model_type!r} is not known to the planner")
        config = {"model_type": model_type, **config}
    reader = READERS.get(model_type) if isinstance(model_type, str) else None
    if reader is not None:
        spec = reader(Fields(config))
        _check(spec)
    elif model_type in FAMILIES or model_type == "gemma3":
        spec = plan_spec(from_hf_config(config))
    else:
        known = sorted({*READERS, *FAMILIES})
        raise UnsupportedModelError(f"model_type {model_type!r} is not known to the planner; known are {', '.join(known)}")
    if stored_format is None:
        return spec
    engine_spec = spec.engine_spec if stored_format in ("bf16", "fp32") else None
    return dataclasses.replace(spec, stored_format=stored_format, engine_spec=engine_spec)


def _check(spec: PlanSpec) -> None:
    """Refuses a description that contradicts itself.

    Raises:
        CheckpointError: it has fewer than no layers of a kind, or its tokens choose more experts than there are.
    """
    layers = [kind.num_layers for kind in (*spec.attention, *spec.states)]
    parameters = dataclasses.astuple(spec.parameters) if spec.parameters else ()
    if min([*layers, *parameters]) < 0 or sum(layers) == 0:
        raise CheckpointError("config.json contradicts itself: its layers of one kind are more than all of its layers")
    if spec.experts_per_token > spec.num_experts:
        raise CheckpointError(f"config.json has {spec.num_experts} experts, of which a token chooses {spec.experts_per_token}")


def read_stored_format(config: Mapping[str, Any]) -> str | None:
    """Returns the weight format that the config states; None where it states none.

    Raises:
        UnsupportedModelError: it states one that cannot be told apart from here.
    """
    nested = config.get("text_config")
    quantisation = config.get("quantization_config") or (nested.get("quantization_config") if isinstance(nested, Mapping) else None)
    if quantisation and not isinstance(quantisation, Mapping):
        raise UnsupportedModelError("quantization_config is not an object; give the weights' format yourself")
    if quantisation:
        method = quantisation.get("quant_method")
        name = QUANTISATION_METHODS.get(str(method)) or str(quantisation.get("quant_algo", "")).lower()
        if name not in ("mxfp4", "fp8", "nvfp4"):
            raise UnsupportedModelError(f"quantization_config of method {method!r} is not known; give the weights' format yourself")
        return name
    dtype = config.get("dtype") or config.get("torch_dtype")
    return "fp32" if dtype == "float32" else None
