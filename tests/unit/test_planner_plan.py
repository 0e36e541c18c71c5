"""octavo.planner.plan: the budget adds up, both ceilings hold, and advice that is given works."""

import dataclasses

import pytest

from octavo.planner.advice import advise, find_reason
from octavo.planner.config_reader import read_plan_spec
from octavo.planner.machines import Machine, find_machine
from octavo.planner.plan import Planner, PlanRequest, table_contexts
from octavo.planner.shipped_models import shipped_models
from octavo.planner.weight_sizes import sizes_from_parameters

GIB = 2**30
REQUEST = PlanRequest(
    kv_dtype="bf16",
    block_size=16,
    context_tokens=None,
    num_users=1,
    shared_tokens=0,
    step_tokens=512,
    max_num_seqs=256,
    min_tokens_per_s=10.0,
)
SPARK = find_machine("dgx-spark")


def planner(name: str, machine: Machine = SPARK, *, weights: str | None = None, **changes) -> Planner:
    spec = read_plan_spec(shipped_models()[name].config)
    weight_format = weights or spec.stored_format
    sizes = sizes_from_parameters(spec, weight_format)
    return Planner(name, spec, machine, sizes, weight_format, dataclasses.replace(REQUEST, **changes))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b", "nemotron-h-8b"])
def test_budget_adds_up(name: str) -> None:
    budget = planner(name).budget
    terms = budget.weight_bytes + budget.workspace_bytes + budget.overhead_bytes + budget.kv_bytes
    assert terms == budget.usable_bytes == SPARK.usable_bytes
    assert budget.shortage_bytes == 0


def test_gpt_oss_120b_on_a_spark() -> None:
    """115.7 GiB available, 60.8 of weights, 6.7 of overhead, 8 of reserve: about 140 users at 8K and 8 at 128K, by memory."""
    plan = planner("gpt-oss-120b").plan()
    users = {row.context_tokens: row.users_by_memory for row in plan.rows}
    assert users[8192] == 139
    assert users[131_072] == 8
    assert {row.context_tokens: row.binding for row in plan.rows}[8192] == "speed"


def test_speed_binds_where_memory_does_not() -> None:
    slow, fast = (dataclasses.replace(SPARK, bandwidth=bandwidth) for bandwidth in (10**11, 10**14))
    rows = {machine.bandwidth: planner("llama-3.1-8b", machine).row(131_072) for machine in (slow, fast)}
    assert [row.binding for row in rows.values()] == ["speed", "memory"]
    assert rows[10**14].users_by_memory == rows[10**11].users_by_memory


def test_single_user_speed_is_bandwidth_over_bytes_read() -> None:
    made = planner("llama-3.1-8b")
    weights = sizes_from_parameters(made.spec, "bf16")
    read = weights.total_bytes - 128_256 * 4096 * 2 + 8192 * 131_072
    assert made.speed.tokens_per_s(1, 8192) == pytest.approx(273e9 / read)


def test_users_by_speed_are_the_most_that_get_it() -> None:
    made = planner("qwen3-30b-a3b")
    users = made.row(8192).users_by_speed
    assert made.speed.tokens_per_s(users, 8192) >= 10 > made.speed.tokens_per_s(users + 1, 8192)


def test_largest_context_is_the_largest() -> None:
    made = planner("llama-3.1-8b", num_users=20)
    largest = made.largest_context(20)
    assert 0 < largest.by_memory < 131_072
    assert made.users_by_memory(largest.by_memory) >= 20 > made.users_by_memory(largest.by_memory + 1)


def test_two_machines_hold_what_one_does_not() -> None:
    one = planner("llama-3.1-70b", min_tokens_per_s=1.0).plan()
    two = planner("llama-3.1-70b", find_machine("dgx-spark-x2"), min_tokens_per_s=1.0).plan()
    assert (one.fits, two.fits) == (False, True)
    assert two.budget.weight_bytes == -(-one.weights.total_bytes // 2)


@pytest.mark.parametrize(("spare", "fits"), [(-1, False), (0, True)])
def test_fits_to_the_byte(spare: int, fits: bool) -> None:
    """Weights, workspace, overhead and one block are the least that is something."""
    changes = {"context_tokens": 16, "min_tokens_per_s": 0.001, "step_tokens": 4096}  # more workspace than loading takes
    made = planner("smollm2-135m", **changes)
    block = made.kv.sequence_bytes(16)
    least = made.budget.weight_bytes + made.budget.workspace_bytes + made.budget.overhead_bytes + block
    machine = dataclasses.replace(SPARK, available_bytes=least + spare, reserve_bytes=0)
    assert planner("smollm2-135m", machine, **changes).plan().fits is fits


def test_load_peak_alone_can_be_too_much() -> None:
    changes = {"step_tokens": 1, "max_num_seqs": 1}
    made = planner("smollm2-135m", **changes)
    assert made.budget.load_peak_bytes == made.budget.weight_bytes + made.budget.overhead_bytes + 49_152 * 576 * 2
    machine = dataclasses.replace(SPARK, available_bytes=made.budget.load_peak_bytes - 1, reserve_bytes=0)
    budget = planner("smollm2-135m", machine, **changes).budget
    assert budget.shortage_bytes == 1
    assert budget.kv_bytes > 0


def test_shortage_is_explained_in_numbers() -> None:
    made = planner("llama-3.1-70b")
    plan = made.plan()
    assert not plan.fits
    assert "131.42 GiB" in find_reason(plan) and "107.70 GiB" in find_reason(plan)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-3.1-70b", {"context_tokens": 32_768, "num_users": 8}),
        ("llama-3.1-8b", {"context_tokens": 131_072, "num_users": 30, "min_tokens_per_s": 0.1}),
        ("gpt-oss-120b", {"context_tokens": 131_072, "num_users": 12, "min_tokens_per_s": 0.1}),
        ("qwen3-32b", {"context_tokens": 8192, "num_users": 4}),
    ],
)
def test_every_advised_setting_fits(name: str, changes: dict) -> None:
    made = planner(name, **changes)
    advice = advise(made, made.plan())
    assert advice is not None and advice.options
    for option in advice.options:
        words = option.split()
        given = dict(zip(words[::2], words[1::2], strict=True))
        settings = changes | {
            "kv_dtype": given.get("--kv-dtype", "bf16"),
            "context_tokens": int(given.get("--context", changes["context_tokens"])),
            "num_users": int(given.get("--users", changes["num_users"])),
            "min_tokens_per_s": float(given.get("--min-speed", changes.get("min_tokens_per_s", 10.0))),
        }
        assert planner(name, weights=given.get("--weights"), **settings).plan().fits, option


@pytest.mark.parametrize(("changes", "runs"), [({}, True), ({"weights": "nvfp4"}, False), ({"kv_dtype": "q8_0"}, False)])
def test_plan_says_whether_this_engine_runs_it(changes: dict, runs: bool) -> None:
    assert planner("llama-3.1-8b", **changes).plan().runs_here is runs


def test_nothing_is_advised_for_what_fits() -> None:
    made = planner("llama-3.1-8b", context_tokens=8192, num_users=2)
    assert advise(made, made.plan()) is None


def test_table_ends_at_the_models_limit() -> None:
    assert table_contexts(8192) == [1024, 2048, 4096, 8192]
    assert table_contexts(40_960)[-2:] == [32_768, 40_960]
    assert table_contexts(512) == [512]
