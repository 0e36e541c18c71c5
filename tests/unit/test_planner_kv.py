"""octavo.planner.kv_plan: the plan's blocks are the engine's blocks, and as many sequences as planned fit at once."""

import pytest

from octavo.config import EngineConfig
from octavo.engine.loading import kv_sizes
from octavo.engine.memory_budget import make_budget
from octavo.memory.kv_manager import KVManager
from octavo.models.spec import ModelSpec
from octavo.planner.config_reader import read_plan_spec
from octavo.planner.host_memory import HostMemory
from octavo.planner.kv_plan import EngineKVPlan, FormulaKVPlan, KVSettings, make_kv_plan
from octavo.planner.load_sizes import LoadSizes
from octavo.planner.plan_spec import PlanSpec
from octavo.planner.shipped_models import shipped_models

ENGINE_MODELS = ["smollm2-135m", "gemma3-270m", "mistral-7b-v0.1", "qwen3-0.6b", "gemma-2-9b", "phi-4"]
GIB = 2**30


def shipped(name: str) -> PlanSpec:
    return read_plan_spec(shipped_models()[name].config)


def engine_spec(name: str) -> ModelSpec:
    spec = shipped(name).engine_spec
    assert spec is not None
    return spec


@pytest.mark.parametrize("name", ENGINE_MODELS)
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8", "fp32"])
@pytest.mark.parametrize("block_size", [16, 64])
def test_blocks_are_those_of_the_engine(name: str, kv_dtype: str, block_size: int) -> None:
    config = EngineConfig(kv_dtype=kv_dtype, block_size=block_size, kv_memory=3 * GIB)
    machine = HostMemory(16 * GIB, 16 * GIB, ())
    sizes = kv_sizes(config, engine_spec(name), make_budget(config, engine_spec(name), lambda _: LoadSizes(GIB, 0), machine))
    plan = EngineKVPlan(engine_spec(name), KVSettings(kv_dtype, block_size, config.max_num_batched_tokens))
    assert plan.layout == sizes.layout
    assert plan.groups == sizes.groups
    assert plan.num_blocks(3 * GIB) == sizes.num_blocks


@pytest.mark.parametrize("name", ENGINE_MODELS)
@pytest.mark.parametrize("context", [100, 1500])
def test_a_sequence_takes_what_the_engine_holds_for_it(name: str, context: int) -> None:
    plan = EngineKVPlan(engine_spec(name), KVSettings("bf16", 16, 512))
    manager = KVManager(num_blocks=100_000, block_size=16, groups=plan.groups)
    cache = manager.open([7] * context, (), None)
    for end in range(1, context + 1):  # token by token, as it decodes
        assert manager.allocate(cache, end)
        manager.commit(cache, [7] * context, end)
    held = len(cache.held_blocks()) * plan.layout.block_bytes
    slack = len(plan.groups) * plan.layout.block_bytes  # a window may begin at any place in a block
    assert plan.sequence_bytes(context) - slack <= held <= plan.sequence_bytes(context)


def test_users_fill_the_pool_to_the_watermark() -> None:
    plan = EngineKVPlan(engine_spec("smollm2-135m"), KVSettings("bf16", 16, 512))
    kv_bytes = 1000 * plan.layout.block_bytes
    assert plan.num_blocks(kv_bytes) == 1000
    # 10 blocks are kept back; 160 tokens take 10 blocks each
    assert plan.max_users(kv_bytes, 160, 0) == 99
    assert plan.max_users(989 * plan.layout.block_bytes, 160, 0) == 98


@pytest.mark.parametrize("shortage", [0, 1])
def test_one_block_too_few_holds_nobody(shortage: int) -> None:
    plan = EngineKVPlan(engine_spec("smollm2-135m"), KVSettings("bf16", 16, 512))
    assert plan.max_users(10 * plan.layout.block_bytes - shortage, 160, 0) == 1 - shortage


def test_shared_prefix_is_held_once() -> None:
    plan = EngineKVPlan(engine_spec("smollm2-135m"), KVSettings("bf16", 16, 512))
    kv_bytes = 1000 * plan.layout.block_bytes
    # 990 blocks without the watermark: one user of 100 blocks, and more of 50 each
    assert plan.max_users(kv_bytes, 1600, 800) == 1 + (990 - 100) // 50


def test_prefix_behind_the_window_saves_nothing_there() -> None:
    plan = EngineKVPlan(engine_spec("mistral-7b-v0.1"), KVSettings("bf16", 16, 512))
    assert plan.max_users(8 * GIB, 20_000, 4096) == plan.max_users(8 * GIB, 20_000, 0)
    assert plan.max_users(8 * GIB, 4000, 2048) > plan.max_users(8 * GIB, 4000, 0)


def test_window_bounds_a_sequence() -> None:
    plan = make_kv_plan(shipped("gpt-oss-120b"), KVSettings("bf16", 16, 512))
    growth = plan.sequence_bytes(16_384) - plan.sequence_bytes(8192)
    assert growth == 8192 * 36_864


def test_two_machines_divide_heads_but_not_a_latent() -> None:
    one, two = (KVSettings("bf16", 16, 512, nodes=nodes) for nodes in (1, 2))
    gpt_oss, deepseek = shipped("gpt-oss-120b"), shipped("deepseek-v3")
    assert 2 * FormulaKVPlan(gpt_oss, two).sequence_bytes(8192) == FormulaKVPlan(gpt_oss, one).sequence_bytes(8192)
    assert FormulaKVPlan(deepseek, two).sequence_bytes(8192) == FormulaKVPlan(deepseek, one).sequence_bytes(8192)


def test_formulas_and_blocks_agree_where_both_apply() -> None:
    spec, settings = shipped("llama-3.1-8b"), KVSettings("bf16", 16, 512)
    engine, formula = make_kv_plan(spec, settings), FormulaKVPlan(spec, settings)
    assert isinstance(engine, EngineKVPlan)
    assert engine.sequence_bytes(8000) == formula.sequence_bytes(8000)


def test_formats_of_other_engines_are_planned_by_formula() -> None:
    spec = shipped("llama-3.1-8b")
    assert isinstance(make_kv_plan(spec, KVSettings("q8_0", 16, 512)), FormulaKVPlan)
    assert make_kv_plan(spec, KVSettings("q8_0", 16, 512)).sequence_bytes(16) == 16 * 65_536 * 34 // 32
    assert make_kv_plan(spec, KVSettings("nvfp4", 16, 512)).sequence_bytes(16) == 16 * 65_536 * 9 // 16
