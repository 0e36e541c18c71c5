"""octavo.simulator: whole simulations finish, repeat for a seed, and count what happened."""

import dataclasses

import pytest

from octavo.errors import ConfigError
from octavo.simulator.memories import ALLOCATORS
from octavo.simulator.routers import ROUTERS
from octavo.simulator.settings import SimulationSettings, simulate
from octavo.simulator.step_time import MachineRates, ModelCosts, Roofline

MODEL = ModelCosts(1000, 2000, 8, (None, None), 4, 128, None)  # 16 bytes of K/V per token
MACHINE = MachineRates(1e6, 1e9)


def run(**settings):
    """Returns the report of a simulation on a small model with a memory of 512 tokens."""
    given = {"kv_memory": str(512 * 16), "lengths": "alpaca", "requests": 60, "rate": 50.0, **settings}
    return simulate(SimulationSettings(**given), MODEL, Roofline(MODEL, MACHINE))


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_request_is_answered(allocator: str) -> None:
    report = run(allocator=allocator)
    assert (report.num_finished, report.num_refused) == (60, 0)
    assert report.num_computed_tokens - report.num_recomputed_tokens == (
        report.num_prompt_tokens + report.num_output_tokens - 60
    ), "every token but each answer's last is computed once"
    assert sum(report.split.values()) == pytest.approx(1)
    assert report.ttft.p50_ms <= report.ttft.p90_ms <= report.ttft.p99_ms


@pytest.mark.parametrize("workload", ["poisson", "closed", "chats"])
def test_a_seed_decides_everything(workload: str) -> None:
    first, second, other = (run(workload=workload, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_paging_holds_more_than_an_oracle_that_reserves() -> None:
    running = {name: run(allocator=name, requests=200).mean_running for name in ("paged", "oracle", "power-of-two", "maximum")}
    assert running["paged"] > running["oracle"] > running["power-of-two"] > running["maximum"]


def test_reserve_maximum_runs_as_many_as_fit() -> None:
    assert run(allocator="maximum").peak_running == 512 // 128


def test_only_paging_preempts() -> None:
    assert run(requests=200).num_preemptions > 0
    assert run(requests=200, allocator="oracle").num_preemptions == 0


def test_closed_loop_runs_as_many_as_there_are_users() -> None:
    report = run(workload="closed", users=3)
    assert report.peak_running == 3
    assert report.num_finished == 60


def test_shared_system_prompt_is_found_in_the_cache() -> None:
    assert run(system_tokens=48).hit_ratio > 0.3
    assert run(system_tokens=48, prefix_caching=False).hit_ratio == 0
    assert run().hit_ratio == 0


def test_chats_find_their_history() -> None:
    report = run(workload="chats", requests=10, turns=3, rate=2.0, think_s=0.1)
    assert 10 < report.num_finished <= 30
    assert report.hit_ratio > 0.2


def test_bursts_wait_longer_than_a_poisson_process() -> None:
    calm, bursts = (run(rate=2.0, burst_size=size, requests=200).ttft.mean_ms for size in (1, 20))
    assert bursts > 2 * calm


@pytest.mark.parametrize("router", ROUTERS)
def test_replicas_share_the_work(router: str) -> None:
    one, four = run(requests=200, rate=200.0), run(requests=200, rate=200.0, replicas=4, router=router)
    assert four.num_finished == 200
    assert four.elapsed_s < one.elapsed_s / 2


def test_prefix_affine_router_keeps_chats_where_they_are() -> None:
    settings = {"workload": "chats", "requests": 40, "turns": 3, "rate": 20.0, "think_s": 0.1, "replicas": 4}
    assert run(**settings, router="prefix-affine").hit_ratio > 2 * run(**settings, router="round-robin").hit_ratio


def test_goals_decide_goodput() -> None:
    assert run(ttft_goal_ms=1e9, tpot_goal_ms=1e9).goodput_per_s == run().requests_per_s
    assert run(ttft_goal_ms=0.0).goodput_per_s == 0
    assert 0 < run(ttft_goal_ms=run().ttft.p50_ms).goodput_per_s < run().requests_per_s


def test_cost_is_price_times_time_over_tokens() -> None:
    report = run(price_per_hour=3.6, replicas=2)
    assert report.cost_per_million_tokens == pytest.approx(2 * 1e-3 * report.elapsed_s / report.num_output_tokens * 1e6)
    assert run().cost_per_million_tokens is None


def test_progress_reaches_the_number_of_requests() -> None:
    counts = []
    settings = SimulationSettings(kv_memory=str(512 * 16), lengths="alpaca", requests=20)
    simulate(settings, MODEL, Roofline(MODEL, MACHINE), counts.append)
    assert counts == list(range(1, 21))


def test_windowed_layers_read_and_hold_less() -> None:
    windowed = dataclasses.replace(MODEL, windows=(16, None))
    settings = SimulationSettings(kv_memory=str(512 * 16), lengths="alpaca", requests=100, rate=200.0)
    assert (
        simulate(settings, windowed, Roofline(windowed, MACHINE)).elapsed_s
        < simulate(settings, MODEL, Roofline(MODEL, MACHINE)).elapsed_s
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0.0}, "rate=0.0"),
        ({"think_s": -1.0}, "think_s=-1.0"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"price_per_hour": float("inf")}, "price_per_hour=inf"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 9}, "below max_num_seqs"),
        ({"system_tokens": 127}, "leaves no room"),
        ({"kv_memory": "100"}, "hold 0 KV blocks"),
        ({"allocator": "maximum", "kv_memory": "2000"}, "no contiguous room"),
        ({"allocator": "heap"}, "allocator='heap'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(**settings)


def test_memory_is_short_only_when_blocks_are() -> None:
    """Requests that wait for their turn in a step's budget, in a memory that holds them all, do not wait for memory."""
    settings = {"workload": "closed", "users": 64, "lengths": "sharegpt", "requests": 128, "max_model_len": 128}
    roomy, short = (run(**settings, kv_memory=f"{kib}KiB") for kib in (1024, 24))
    assert roomy.split is None
    assert short.split is not None and short.split["tokens"] > 0.7
