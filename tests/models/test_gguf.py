"""Models out of GGUF files: converted from tiny random models as llama.cpp's converter does it, and the real ones."""

import math
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers

from models.tiny import OPS, PagedRun, build, checkpoint, oracle_logits, relative_error
from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.models.checkpoint import GGUFSource
from octavo.models.gguf_config import from_gguf_metadata
from octavo.models.hf_config import from_hf_config
from octavo.models.rotary import default_rotary
from octavo.models.weights import load_weights

TOLERANCE = 2e-5
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA = {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 8, "num_hidden_layers": 7}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "llama-tied": transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, head_dim=8),
    "llama-llama3-rope": transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama-biases": transformers.LlamaConfig(**SIZES, attention_bias=True),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=24),
    "gemma2": transformers.Gemma2Config(**SIZES | GEMMA),
    "gemma3": transformers.Gemma3TextConfig(**SIZES | GEMMA),
    "phi3": transformers.Phi3Config(**SIZES, pad_token_id=0, sliding_window=9),
    "phi3-longrope": transformers.Phi3Config(
        **SIZES | {"max_position_embeddings": 256},
        pad_token_id=0,
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 3.0, 4.0, 5.0],
        },
    ),
}


def write_gguf(path: Path, model: torch.nn.Module, architecture: str, quantised: gguf.GGMLQuantizationType | None = None) -> None:
    """Writes what llama.cpp's converter would; names come from the gguf package's own tables."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    write_header(writer, config, architecture)
    names = gguf.get_tensor_name_map(architecture_id(architecture), config.num_hidden_layers)
    for name, value in checkpoint(model).items():
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            value = value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
        if architecture.startswith("gemma") and "norm" in name:
            value = value + 1
        kind = quantised if quantised is not None and value.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(np.ascontiguousarray(value), kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), data, raw_dtype=kind)
    for name, factors in rotary_factors(config).items():
        writer.add_tensor(name, np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rotary_factors(config: transformers.PretrainedConfig) -> dict[str, np.ndarray | list[float]]:
    """Returns the tensors by which GGUF states the rotations that have a factor per pair."""
    parameters = config.rope_parameters
    if parameters.get("rope_type") == "llama3":
        plain = np.array(default_rotary(10000.0, config.head_dim).inverse_frequencies)
        return {"rope_freqs.weight": plain / np.array(from_hf_config(config.to_dict()).rotaries[0].inverse_frequencies)}
    if parameters.get("rope_type") == "longrope":
        return {f"rope_factors_{length}.weight": parameters[f"{length}_factor"] for length in ("short", "long")}
    return {}


def architecture_id(name: str) -> gguf.MODEL_ARCH:
    return next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)


def write_header(writer: gguf.GGUFWriter, config: transformers.PretrainedConfig, architecture: str) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    parameters = config.rope_parameters
    writer.add_rope_freq_base((parameters.get("full_attention") or parameters)["rope_theta"])
    head_dim = getattr(config, "head_dim", None)
    if head_dim is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if getattr(config, "sliding_window", None) and architecture != "qwen2":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "phi3":
        head_width = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(head_width * parameters["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if parameters.get("rope_type") == "longrope":
        stretch = config.max_position_embeddings / config.original_max_position_embeddings
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(config.original_max_position_embeddings)))
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def gguf_logits(path: Path, token_ids: list[int]) -> np.ndarray:
    source = GGUFSource(path)
    spec = from_gguf_metadata(source.header.metadata, source.names())
    return PagedRun(spec, load_weights(spec, source, OPS, "fp32"), len(token_ids)).step(token_ids)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_logits_equal_transformers(tmp_path, name):
    config = CONFIGS[name]
    model, token_ids = build(config, seed=9), np.random.default_rng(4).integers(0, 96, 37).tolist()
    write_gguf(tmp_path / "model.gguf", model, name.partition("-")[0])
    assert relative_error(gguf_logits(tmp_path / "model.gguf", token_ids), oracle_logits(model, token_ids)) <= TOLERANCE


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_rows_of_quantised_projections_are_reordered_too(tmp_path, kind):
    model, token_ids = build(CONFIGS["llama"], seed=9), list(range(30))
    quantised = gguf.GGMLQuantizationType[kind]
    write_gguf(tmp_path / "model.gguf", model, "llama", quantised)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:  # the oracle computes with what the file can express
                parameter.copy_(torch.from_numpy(gguf.dequantize(gguf.quants.quantize(parameter.numpy(), quantised), quantised)))
    assert relative_error(gguf_logits(tmp_path / "model.gguf", token_ids), oracle_logits(model, token_ids)) <= TOLERANCE


HEADER = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 7,
    "gemma3.context_length": 64,
    "gemma3.embedding_length": 64,
    "gemma3.feed_forward_length": 96,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.vocab_size": 96,
}


def test_absent_keys_have_the_formats_defaults():
    spec = from_gguf_metadata(HEADER, ["output.weight"])
    assert (spec.num_kv_heads, spec.head_dim, spec.tied_head) == (4, 16, False)
    assert spec.windows == (None,) * 7


def test_a_scaling_factor_without_a_type_is_linear():
    (rotary,) = from_gguf_metadata(HEADER | {"gemma3.rope.scaling.factor": 8.0}, []).rotaries
    assert rotary.inverse_frequencies[0] == 1 / 8


def test_values_per_layer_must_agree():
    assert from_gguf_metadata(HEADER | {"gemma3.attention.head_count_kv": np.full(7, 2, np.int32)}, []).num_kv_heads == 2
    with pytest.raises(UnsupportedModelError, match="head_count_kv"):
        from_gguf_metadata(HEADER | {"gemma3.attention.head_count_kv": [2, 2, 2, 1, 2, 2, 2]}, [])


def test_window_pattern_given_as_a_list():
    pattern = np.array([True, False, False, True, True, True, False])
    spec = from_gguf_metadata(
        HEADER | {"gemma3.attention.sliding_window": 8, "gemma3.attention.sliding_window_pattern": pattern}, []
    )
    assert spec.windows == (8, None, None, 8, 8, 8, None)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"general.architecture": "mamba"}, "mamba"),
        ({"gemma3.expert_count": 8}, "expert_count"),
        ({"gemma3.rope.scaling.type": "longrope"}, "longrope"),
        ({"gemma3.rope.dimension_count": 8}, "dimension_count"),
        ({"gemma3.attention.key_length": 16, "gemma3.attention.value_length": 8}, "value_length"),
    ],
)
def test_unsupported_keys_are_refused_by_name(changes, name):
    with pytest.raises(UnsupportedModelError, match=name):
        from_gguf_metadata(HEADER | changes, [])


def test_a_missing_key_is_named():
    with pytest.raises(CheckpointError, match="block_count"):
        from_gguf_metadata({k: v for k, v in HEADER.items() if k != "gemma3.block_count"}, [])


def real_spec(name: str):
    folder = os.environ.get("OCTAVO_TEST_MODELS")
    if folder is None or not (Path(folder) / name).exists():
        pytest.skip(f"{name} is not in the folder that OCTAVO_TEST_MODELS names")
    source = GGUFSource(Path(folder) / name)
    return from_gguf_metadata(source.header.metadata, source.names())


def test_smollm2_file():
    spec = real_spec("smollm2-q4_1.gguf")
    assert (spec.architecture, spec.num_layers, spec.hidden_size, spec.vocab_size) == ("llama", 30, 576, 49152)
    assert (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.tied_head) == (9, 3, 64, True)
    assert spec.rotaries[0].inverse_frequencies[1] == pytest.approx(100000 ** (-2 / 64))
    assert spec.end_token_ids == (2,)


def test_gemma3_file():
    spec = real_spec("gemma3-270m-q4_k_m.gguf")
    assert (spec.architecture, spec.num_layers, spec.hidden_size, spec.vocab_size) == ("gemma3", 18, 640, 262144)
    assert (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.tied_head) == (4, 1, 256, True)
    assert [layer for layer, window in enumerate(spec.windows) if window is None] == [5, 11, 17]
    assert set(spec.windows) == {None, 512}
    assert [r.inverse_frequencies[1] ** -128 for r in spec.rotaries] == pytest.approx([1e4, 1e6])
    assert (spec.embedding_scale, spec.norm_weight_offset) == (640**0.5, 0.0)
