"""octavo.planner: what known models store and weigh, to the byte, and which descriptions are refused."""

from typing import Any

import pytest

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.planner.config_reader import read_plan_spec
from octavo.planner.formats import kv_format
from octavo.planner.plan_spec import PlanSpec
from octavo.planner.shipped_models import shipped_models
from octavo.planner.weight_sizes import sizes_from_parameters

GIB, MIB = 2**30, 2**20
BF16 = kv_format("bf16")
CONTEXTS = (8 * 1024, 32 * 1024, 128 * 1024)

# name: bytes per token, those beyond every window, MiB of state, GiB of a sequence of 8K, 32K and 128K tokens
KV = {
    "opt-13b": (819_200, 819_200, 0, 6.250, 25.000, 100.000),
    "llama-2-13b": (819_200, 819_200, 0, 6.250, 25.000, 100.000),
    "llama-3.2-1b": (32_768, 32_768, 0, 0.250, 1.000, 4.000),
    "llama-3.1-8b": (131_072, 131_072, 0, 1.000, 4.000, 16.000),
    "llama-3.1-70b": (327_680, 327_680, 0, 2.500, 10.000, 40.000),
    "mistral-7b-v0.1": (131_072, 0, 0, 0.500, 0.500, 0.500),
    "mixtral-8x7b": (131_072, 131_072, 0, 1.000, 4.000, 16.000),
    "qwen2.5-7b": (57_344, 57_344, 0, 0.438, 1.750, 7.000),
    "qwen3-0.6b": (114_688, 114_688, 0, 0.875, 3.500, 14.000),
    "qwen3-8b": (147_456, 147_456, 0, 1.125, 4.500, 18.000),
    "qwen3-32b": (262_144, 262_144, 0, 2.000, 8.000, 32.000),
    "qwen3-30b-a3b": (98_304, 98_304, 0, 0.750, 3.000, 12.000),
    "qwen3-235b-a22b": (192_512, 192_512, 0, 1.469, 5.875, 23.500),
    "phi-4": (204_800, 204_800, 0, 1.562, 6.250, 25.000),
    "glm-4.5-air": (188_416, 188_416, 0, 1.438, 5.750, 23.000),
    "gemma-2-9b": (344_064, 172_032, 0, 1.969, 5.906, 21.656),
    "gemma-2-27b": (376_832, 188_416, 0, 2.156, 6.469, 23.719),
    "gemma-3-1b": (26_624, 4_096, 0, 0.042, 0.136, 0.511),
    "gemma-3-12b": (393_216, 65_536, 0, 0.812, 2.312, 8.312),
    "gemma-3-27b": (507_904, 81_920, 0, 1.031, 2.906, 10.406),
    "gemma-3n-e4b": (40_960, 8_192, 0, 0.078, 0.266, 1.016),
    "gpt-oss-20b": (49_152, 24_576, 0, 0.190, 0.753, 3.003),
    "gpt-oss-120b": (73_728, 36_864, 0, 0.286, 1.129, 4.504),
    "deepseek-v3": (70_272, 70_272, 0, 0.536, 2.145, 8.578),
    "qwen3-next-80b-a3b": (24_576, 24_576, 73.7, 0.259, 0.822, 3.072),
    "nemotron-3-nano-30b-a3b": (6_144, 6_144, 46.8, 0.093, 0.233, 0.796),
    "nemotron-h-8b": (16_384, 16_384, 97.4, 0.220, 0.595, 2.095),
    "granite-4.0-h-micro": (8_192, 8_192, 72.9, 0.134, 0.321, 1.071),
    # What follows are today's common models; 2 x layers that grow x KV heads x head dimension x 2 bytes.
    "llama-3.2-3b": (114_688, 114_688, 0, 0.875, 3.500, 14.000),
    "llama-3.1-405b": (516_096, 516_096, 0, 3.9375, 15.750, 63.000),
    "llama-3.3-70b": (327_680, 327_680, 0, 2.500, 10.000, 40.000),
    "mistral-7b-v0.3": (131_072, 131_072, 0, 1.000, 4.000, 16.000),
    "qwen2.5-0.5b": (12_288, 12_288, 0, 0.094, 0.375, 1.500),
    "qwen2.5-32b": (262_144, 262_144, 0, 2.000, 8.000, 32.000),
    "qwen2.5-72b": (327_680, 327_680, 0, 2.500, 10.000, 40.000),
    "qwen3-1.7b": (114_688, 114_688, 0, 0.875, 3.500, 14.000),
    "qwen3-4b": (147_456, 147_456, 0, 1.125, 4.500, 18.000),
    "qwen3-14b": (163_840, 163_840, 0, 1.250, 5.000, 20.000),
    "phi-4-mini": (131_072, 131_072, 0, 1.000, 4.000, 16.000),
    "gemma-2-2b": (106_496, 53_248, 0, 0.609, 1.828, 6.703),
    "gemma-3-4b": (139_264, 20_480, 0, 0.270, 0.738, 2.613),
    "smollm2-360m": (40_960, 40_960, 0, 0.3125, 1.250, 5.000),
    "smollm2-1.7b": (196_608, 196_608, 0, 1.500, 6.000, 24.000),
    "qwen3.5-9b": (32_768, 32_768, 49.1, 0.298, 1.048, 4.048),
    "qwen3.6-27b": (65_536, 65_536, 146.8, 0.643, 2.143, 8.143),
    "qwen3.6-35b-a3b": (20_480, 20_480, 61.4, 0.216, 0.685, 2.560),
    "ministral-3-8b": (139_264, 139_264, 0, 1.0625, 4.250, 17.000),
    "mistral-small-4-119b": (23_040, 23_040, 0, 0.176, 0.703, 2.8125),
    "minimax-m2": (253_952, 253_952, 0, 1.9375, 7.750, 31.000),
    "seed-oss-36b": (262_144, 262_144, 0, 2.000, 8.000, 32.000),
}
PARAMETERS = {
    "llama-2-13b": 13_015_864_320,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "phi-4": 14_659_507_200,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_009_346_304,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v3": 671_026_419_200,
    # As transformers 5.24.0 counts them, the model made on its "meta" device.
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.3-70b": 70_553_706_496,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "phi-4-mini": 3_836_021_760,
    "gemma-2-2b": 2_614_341_888,
    "gemma-3-4b": 3_880_099_328,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen3.5-9b": 8_953_803_264,
    "qwen3.6-27b": 26_895_998_464,
    "qwen3.6-35b-a3b": 34_660_610_688,
    "ministral-3-8b": 8_489_553_920,
    "mistral-small-4-119b": 118_972_826_624,
    "minimax-m2": 228_689_764_864,
    "seed-oss-36b": 36_151_104_512,
}
# What a reader that takes hidden_size / num_attention_heads for the head, or a window for nothing, would say.
NAIVE_BYTES_PER_TOKEN = {
    "qwen3-0.6b": 57_344,
    "qwen3-32b": 163_840,
    "qwen3-30b-a3b": 49_152,
    "gemma-3-27b": 666_624,
    "gpt-oss-120b": 51_840,
    "gemma-2-9b": 301_056,
}


def shipped(name: str) -> PlanSpec:
    return read_plan_spec(shipped_models()[name].config)


def changed(name: str, **fields: Any) -> dict[str, Any]:
    """Returns a shipped model's config with some fields changed, and those that are None taken out."""
    config = {**shipped_models()[name].config, **fields}
    return {field: value for field, value in config.items() if value is not None}


@pytest.mark.parametrize("name", KV)
def test_kv_bytes_of_known_models(name: str) -> None:
    per_token, growing, state_mib, *sequences_gib = KV[name]
    spec = shipped(name)
    assert spec.bytes_per_token(BF16) == per_token
    assert spec.growing_bytes_per_token(BF16) == growing
    assert spec.state_bytes() / MIB == pytest.approx(state_mib, abs=0.05)
    assert [spec.sequence_bytes(context, BF16) / GIB for context in CONTEXTS] == pytest.approx(sequences_gib, abs=0.0005001)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_known_models(name: str) -> None:
    parameters = shipped(name).parameters
    assert parameters is not None
    assert parameters.total == PARAMETERS[name]


@pytest.mark.parametrize(("name", "billions"), [("qwen3-next-80b-a3b", 79.7), ("nemotron-3-nano-30b-a3b", 31.6)])
def test_totals_that_are_known_roughly(name: str, billions: float) -> None:
    parameters = shipped(name).parameters
    assert parameters is not None
    assert parameters.total / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize("name", NAIVE_BYTES_PER_TOKEN)
def test_head_dim_is_the_explicit_one(name: str) -> None:
    config = shipped_models()[name].config
    naive = (
        2 * config["num_hidden_layers"] * config["num_key_value_heads"] * 2 * config["hidden_size"] // config["num_attention_heads"]
    )
    assert naive == NAIVE_BYTES_PER_TOKEN[name]
    assert shipped(name).bytes_per_token(BF16) != naive


@pytest.mark.parametrize(("name", "num_bytes"), [("gpt-oss-120b", 65_248_815_744), ("gpt-oss-20b", 13_761_264_768)])
def test_weights_as_published_in_mxfp4(name: str, num_bytes: int) -> None:
    spec = shipped(name)
    assert spec.stored_format == "mxfp4"
    assert sizes_from_parameters(spec, "mxfp4").total_bytes == num_bytes


def test_gemma_3_27b_at_128k_takes_10_406_gib() -> None:
    assert shipped("gemma-3-27b").sequence_bytes(128 * 1024, BF16) == 11_173_625_856
    assert round(11_173_625_856 / GIB, 3) == 10.406


def test_gib_is_not_gb() -> None:
    weights = sizes_from_parameters(shipped("llama-3.1-8b"), "bf16").total_bytes
    assert (round(weights / GIB, 2), round(weights / 1e9, 2)) == (14.96, 16.06)


def test_delta_net_state_in_float32_is_what_llama_cpp_logs() -> None:
    config = changed("qwen3-next-80b-a3b", num_hidden_layers=64, linear_num_value_heads=48)
    (state,) = read_plan_spec(config).states
    assert state.num_bytes(convolution_element_bytes=4) / MIB == 149.625


def test_layers_that_share_kv_store_nothing() -> None:
    assert shipped("gemma-3n-e4b").num_sharing_layers == 15
    unshared = read_plan_spec(changed("gemma-3n-e4b", num_kv_shared_layers=0))
    assert unshared.bytes_per_token(BF16) == 71_680
    assert unshared.growing_bytes_per_token(BF16) == 14_336


def test_tied_head_is_counted_once() -> None:
    tied, untied = (read_plan_spec(changed("llama-3.2-1b", tie_word_embeddings=tied)).parameters for tied in (True, False))
    assert tied is not None and untied is not None
    assert untied.total - tied.total == 128_256 * 2048


def test_nested_text_config_is_read() -> None:
    text = shipped_models()["gemma-3-27b"].config
    nested = read_plan_spec({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    assert nested.attention == shipped("gemma-3-27b").attention


def test_nested_gemma_3n_is_read() -> None:
    text = shipped_models()["gemma-3n-e4b"].config
    assert read_plan_spec({"model_type": "gemma3n", "text_config": text}) == shipped("gemma-3n-e4b")


def test_window_that_is_switched_off_hides_nothing() -> None:
    spec = read_plan_spec(changed("qwen2.5-7b", sliding_window=4096, use_sliding_window=False))
    assert [kind.window for kind in spec.attention] == [None]


def test_listed_layer_types_win_over_the_pattern() -> None:
    spec = read_plan_spec(changed("gemma-3-1b", layer_types=["full_attention"] * 26))
    assert spec.growing_bytes_per_token(BF16) == 26_624


def test_expert_model_reads_fewer_bytes_than_it_stores() -> None:
    spec = shipped("qwen3-30b-a3b")
    weights = sizes_from_parameters(spec, "bf16")
    one, many = weights.bytes_read(spec, 1), weights.bytes_read(spec, 1000)
    assert one / 2e9 == pytest.approx(3.05, abs=0.05)  # the "A3B" of its name, without the embedding table
    assert one < many <= weights.total_bytes


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "minimax-m2"])
def test_activations_of_every_chosen_expert_have_room(name: str) -> None:
    one, three = (read_plan_spec(changed(name, num_experts_per_tok=n)) for n in (1, 3))
    config = shipped_models()[name].config
    width = config.get("moe_intermediate_size", config["intermediate_size"])
    assert three.workspace_width - one.workspace_width == 2 * 3 * width


@pytest.mark.parametrize("model_type", ["mamba", "rwkv", "llama4", None])
def test_unknown_architecture_is_refused_by_name(model_type: str | None) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{model_type!r} is not known"):
        read_plan_spec({"model_type": model_type, "hidden_size": 64})


def test_unknown_layer_type_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'chunked_attention'"):
        read_plan_spec(changed("gpt-oss-20b", layer_types=["chunked_attention"] * 24))


def test_pattern_with_an_unknown_letter_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="hybrid_override_pattern"):
        read_plan_spec(changed("nemotron-h-8b", hybrid_override_pattern="X" * 52))


def test_missing_field_is_named() -> None:
    with pytest.raises(CheckpointError, match="'kv_lora_rank'"):
        read_plan_spec(changed("deepseek-v3", kv_lora_rank=None))


def test_quantised_copy_of_a_model_that_the_engine_runs_is_planned_but_not_run() -> None:
    spec = read_plan_spec(changed("llama-3.1-8b", quantization_config={"quant_method": "fp8"}))
    assert (spec.stored_format, spec.engine_spec) == ("fp8", None)
    assert spec.bytes_per_token(BF16) == 131_072


def test_unknown_quantisation_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'mystery'"):
        read_plan_spec(changed("llama-3.1-8b", quantization_config={"quant_method": "mystery"}))


def test_weights_that_only_headers_tell_are_not_guessed() -> None:
    with pytest.raises(CheckpointError, match="gemma3n"):
        sizes_from_parameters(shipped("gemma-3n-e4b"), "bf16")


def test_every_shipped_model_has_a_source_and_can_be_read() -> None:
    assert all(model.source for model in shipped_models().values())
    assert set(KV) <= shipped_models().keys()
    for name in shipped_models():
        assert shipped(name).bytes_per_token(BF16) > 0


@pytest.mark.parametrize(
    ("outer", "name"),
    [
        ("qwen3_5", "qwen3.5-9b"),
        ("qwen3_5_moe", "qwen3.6-35b-a3b"),
        ("mistral3", "ministral-3-8b"),
        ("mistral3", "mistral-small-4-119b"),
    ],
)
def test_a_multimodal_models_text_decoder_counts(outer: str, name: str) -> None:
    config = {"model_type": outer, "vision_config": {"hidden_size": 9}, "text_config": shipped_models()[name].config}
    assert read_plan_spec(config) == shipped(name)


def test_a_decoder_that_its_model_never_holds_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="text_config of model_type 'opt'"):
        read_plan_spec({"model_type": "mistral3", "text_config": shipped_models()["opt-13b"].config})


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("qwen3-30b-a3b", {"num_hidden_layers": -4}),
        ("qwen3-30b-a3b", {"num_hidden_layers": 10**9}),
        ("qwen3-30b-a3b", {"num_hidden_layers": True}),
        ("qwen3-30b-a3b", {"hidden_size": 64.5}),
        ("qwen3-30b-a3b", {"num_experts": "8"}),
        ("qwen3-30b-a3b", {"num_experts_per_tok": 129}),
        ("qwen3-30b-a3b", {"num_attention_heads": 0}),
        ("qwen3-30b-a3b", {"num_key_value_heads": 0}),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 0}),
        ("qwen3-30b-a3b", {"max_position_embeddings": 0}),
        ("qwen3-30b-a3b", {"vocab_size": 10**30}),
        ("qwen3-30b-a3b", {"attention_bias": "no"}),
        ("deepseek-v3", {"first_k_dense_replace": 62}),
        ("gemma-3n-e4b", {"num_kv_shared_layers": 35}),
        ("gemma-3n-e4b", {"layer_types": [1] * 35}),
        ("gemma-3n-e4b", {"intermediate_size": ["16384"] * 35}),
        ("gemma-3n-e4b", {"intermediate_size": [16384] * 34}),
        ("gemma-3n-e4b", {"intermediate_size": []}),
        ("llama-3.1-8b", {"intermediate_size": [14336] * 32}),
        ("qwen3-30b-a3b", {"intermediate_size": [6144], "mlp_only_layers": [0]}),
        ("qwen3-30b-a3b", {"mlp_only_layers": 5}),
        ("qwen3-30b-a3b", {"mlp_only_layers": ["0"]}),
        ("gpt-oss-20b", {"layer_types": 24}),
        ("gpt-oss-20b", {"layer_types": [[]] * 24}),
        ("nemotron-h-8b", {"hybrid_override_pattern": 52}),
        ("qwen3.5-9b", {"full_attention_interval": 0}),
        ("llama-3.1-8b", {"num_hidden_layers": 10**9}),
        ("llama-3.1-8b", {"vocab_size": 10**30}),
        ("llama-3.1-8b", {"quantization_config": "fp8"}),
        ("llama-3.1-8b", {"model_type": ["llama"]}),
        ("qwen3.5-9b", {"model_type": "qwen3_5", "text_config": []}),
    ],
)
def test_a_description_that_no_model_can_have_is_refused(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError)):
        read_plan_spec(changed(name, **fields))


def test_an_empty_list_of_dense_layers_is_what_an_absent_one_is() -> None:
    name = "qwen3-30b-a3b"
    assert read_plan_spec(changed(name, mlp_only_layers=[])) == read_plan_spec(changed(name, mlp_only_layers=None))


def test_every_shipped_model_has_a_row() -> None:
    engines_own = {"smollm2-135m", "gemma3-270m"}  # checked against their files
    assert shipped_models().keys() == KV.keys() | engines_own
