"""What is read from a config.json, and what is refused."""

import pytest
import transformers

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.models.hf_config import from_hf_config

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
QWEN2 = LLAMA | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2}
GEMMA3 = LLAMA | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 7, "sliding_window": 8}


@pytest.mark.parametrize(
    ("fields", "head_dim", "num_kv_heads"),
    [
        ({}, 12, 4),
        ({"head_dim": None, "num_key_value_heads": None}, 12, 4),
        ({"head_dim": 16, "num_key_value_heads": 2}, 16, 2),
        ({"num_key_value_heads": 1}, 12, 1),
    ],
)
def test_head_sizes(fields, head_dim, num_kv_heads):
    spec = from_hf_config(LLAMA | fields)
    assert (spec.head_dim, spec.num_kv_heads) == (head_dim, num_kv_heads)
    assert spec.qkv_width == (4 + 2 * num_kv_heads) * head_dim
    assert spec.query_scale == head_dim**-0.5


@pytest.mark.parametrize(
    ("fields", "base"),
    [
        ({}, 10000.0),
        ({"rope_theta": 500000}, 500000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}, 700.0),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 700.0}}, 700.0),
        ({"rope_theta": 900.0, "rope_scaling": None}, 900.0),
        ({"rope_theta": 900.0, "rope_scaling": {}}, 900.0),
        ({"rope_theta": 900.0, "rope_scaling": {"type": "default"}}, 900.0),
    ],
)
def test_rope_base_from_every_place(fields, base):
    (rotary,) = from_hf_config(LLAMA | fields).rotaries
    assert rotary.inverse_frequencies == pytest.approx([base ** (-i / 12) for i in range(0, 12, 2)])


def test_old_name_of_the_rope_type_is_read():
    (rotary,) = from_hf_config(LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}}).rotaries
    assert rotary.inverse_frequencies[0] == 0.5


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA | {"rope_scaling": {"rope_type": "spiral", "factor": 2}}, "spiral"),
        (LLAMA | {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 2, 2]}}, "mrope_section"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA | {"hidden_act": "relu"}, "hidden_act"),
        (LLAMA | {"mlp_bias": True}, "mlp_bias"),
        (LLAMA | {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        (LLAMA | {"num_local_experts": 8}, "num_local_experts"),
        (LLAMA | {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        (LLAMA | {"model_type": "mamba"}, "mamba"),
        (LLAMA | {"model_type": None}, "None"),
        (LLAMA | {"num_attention_heads": 3, "num_key_value_heads": 2}, "3 query heads"),
        (LLAMA | {"head_dim": 11}, "head of 11"),
        (QWEN2 | {"attention_bias": True}, "attention_bias"),
        (QWEN2 | {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "chunked_attention"),
        (QWEN2 | {"layer_types": ["full_attention"] * 3}, "layer_types"),
        (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA3 | {"hidden_activation": "gelu"}, "hidden_activation"),
    ],
)
def test_unsupported_fields_are_refused_by_name(config, name):
    with pytest.raises(UnsupportedModelError, match=name):
        from_hf_config(config)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "hidden_size"),
        (LLAMA | {"num_hidden_layers": "4"}, "num_hidden_layers='4'"),
        (LLAMA | {"vocab_size": 0}, "vocab_size=0"),
        (LLAMA | {"max_position_embeddings": None}, "max_position_embeddings"),
        (LLAMA | {"rope_scaling": {"rope_type": "linear"}}, "factor"),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
    ],
)
def test_missing_and_malformed_fields_are_named(config, name):
    with pytest.raises(CheckpointError, match=name):
        from_hf_config(config)


def test_qwen_windows_need_their_switch():
    windowed = {"sliding_window": 8, "max_window_layers": 3}
    assert from_hf_config(QWEN2 | windowed).windows == (None,) * 4
    assert from_hf_config(QWEN2 | windowed | {"use_sliding_window": True}).windows == (None, None, None, 8)


def test_mistral_windows():
    mistral = LLAMA | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    assert from_hf_config(mistral | {"sliding_window": 16}).windows == (16,) * 4
    assert from_hf_config(mistral | {"sliding_window": None}).windows == (None,) * 4
    assert from_hf_config(mistral | {"sliding_window": 64}).windows == (None,) * 4  # hides nothing within 64 positions
    assert from_hf_config(mistral | {"max_position_embeddings": 8192}).windows == (4096,) * 4  # the library's default


def test_gemma3_windows_from_pattern_and_list():
    sliding, full = 8, None
    assert from_hf_config(GEMMA3).windows == (sliding,) * 5 + (full, sliding)
    assert from_hf_config(GEMMA3 | {"sliding_window_pattern": 2}).windows == (sliding, full) * 3 + (sliding,)
    listed = GEMMA3 | {"sliding_window_pattern": 2, "layer_types": ["full_attention"] * 6 + ["sliding_attention"]}
    assert from_hf_config(listed).windows == (full,) * 6 + (sliding,)


def test_gemma3_rope_bases_old_style():
    spec = from_hf_config(GEMMA3 | {"head_dim": 16, "rope_theta": 1e6, "rope_local_base_freq": 300.0})
    bases = [rotary.inverse_frequencies[1] ** -8 for rotary in spec.rotaries]
    assert bases == pytest.approx([300.0, 1e6])
    assert spec.layer_rotaries == (0, 0, 0, 0, 0, 1, 0)


def test_gemma3_rope_scaling_old_style_is_for_full_attention_only():
    spec = from_hf_config(GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert [rotary.inverse_frequencies[0] for rotary in spec.rotaries] == [1.0, 1 / 8]


def test_gemma3_nested_text_config():
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    spec = from_hf_config(
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "text_config": text}
    )
    assert (spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (8, 4, 256, 262208)
    assert spec.end_token_ids == (1, 106)
    assert spec.tied_head


def test_a_nested_model_of_another_kind_is_refused():
    with pytest.raises(UnsupportedModelError, match="llava"):
        from_hf_config({"model_type": "llava", "text_config": LLAMA})


@pytest.mark.parametrize(
    ("fields", "tied"), [({}, False), ({"tie_word_embeddings": True}, True), ({"tie_word_embeddings": False}, False)]
)
def test_tie_flag(fields, tied):
    assert from_hf_config(LLAMA | fields).tied_head is tied


def test_tie_flag_outside_the_text_config_wins():
    nested = {"model_type": "gemma3", "text_config": GEMMA3 | {"architectures": None, "tie_word_embeddings": True}}
    assert from_hf_config(nested).tied_head
    assert not from_hf_config(nested | {"tie_word_embeddings": False}).tied_head


@pytest.mark.parametrize(("eos", "ids"), [(2, (2,)), ([2, 9], (2, 9)), (None, ())])
def test_end_tokens(eos, ids):
    assert from_hf_config(LLAMA | {"eos_token_id": eos}).end_token_ids == ids


def test_yarn_serves_its_stretched_length():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert from_hf_config(LLAMA | {"rope_scaling": yarn}).max_position == 256


def test_longrope_serves_its_original_length():
    phi3 = LLAMA | {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 32}
    longrope = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    assert from_hf_config(phi3 | {"rope_scaling": longrope}).max_position == 32


@pytest.mark.parametrize(
    "config_class",
    ["LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config", "Gemma2Config", "Gemma3TextConfig", "Phi3Config"],
)
def test_absent_fields_have_the_librarys_defaults(config_class):
    sizes = {"hidden_size": 2304, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 32, "vocab_size": 40000}
    config = getattr(transformers, config_class)(**sizes)
    bare = {"model_type": config.model_type, "bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    assert from_hf_config(sizes | bare) == from_hf_config(config.to_dict())
