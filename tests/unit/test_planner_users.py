"""octavo.planner: the real scheduler runs as many sequences at once as the plan says, none of them preempted."""

import pytest

from octavo.memory.kv_manager import KVManager
from octavo.planner.config_reader import read_plan_spec
from octavo.planner.kv_plan import EngineKVPlan, KVSettings
from octavo.planner.shipped_models import shipped_models
from octavo.scheduler.scheduler import Scheduler, SchedulerLimits
from octavo.scheduler.sequence import Sequence

STEP_TOKENS = 2048
CONTEXT = 800  # longer than the window of Gemma 3 270M


def make_plan(name: str) -> EngineKVPlan:
    spec = read_plan_spec(shipped_models()[name].config).engine_spec
    assert spec is not None
    return EngineKVPlan(spec, KVSettings("bf16", 16, STEP_TOKENS))


def run_until_full(plan: EngineKVPlan, num_blocks: int, num_offered: int) -> tuple[int, int]:
    """Offers conversations that end at `CONTEXT` tokens until no more get in; returns how many run, and the preemptions."""
    kv = KVManager(num_blocks=num_blocks, block_size=16, groups=plan.groups, enable_prefix_caching=False)
    scheduler = Scheduler(kv, SchedulerLimits(num_offered, STEP_TOKENS, int(kv.watermark_ratio * num_blocks)))
    sequences = [Sequence(number, [number] * (CONTEXT - 1), max_tokens=CONTEXT) for number in range(num_offered)]
    for sequence in sequences:
        scheduler.add(sequence)
    waiting = num_offered + 1
    while scheduler.has_work and len(scheduler.waiting) < waiting:
        waiting = len(scheduler.waiting)
        for _ in range(CONTEXT // 32 + 1):  # the steps of a prompt beside few decodes
            batch = scheduler.schedule()
            scheduler.update(batch)
            for entry in batch.entries:
                if entry.is_last_chunk:  # goes on at its last token: a sequence that wants none is taken out when others wait
                    entry.sequence.cache.num_computed_tokens -= 1
    return len(scheduler.running), sum(sequence.num_preemptions for sequence in sequences)


@pytest.mark.parametrize("num_users", [1, 2, 17, 40])
def test_as_many_run_as_planned(num_users: int) -> None:
    plan = make_plan("smollm2-135m")
    num_blocks = next(n for n in range(10, 10_000) if plan.max_users(n * plan.layout.block_bytes, CONTEXT, 0) == num_users)
    assert run_until_full(plan, num_blocks, num_users + 5) == (num_users, 0)
    if num_users > 1:  # a pool too small for one sequence grows to its size
        assert run_until_full(plan, num_blocks - 1, num_users + 5)[0] == num_users - 1


@pytest.mark.parametrize("num_users", [1, 5, 20])
def test_with_windows_at_least_as_many_run_as_planned(num_users: int) -> None:
    """A window takes one block less in some places than in others; the plan counts the worst of them."""
    plan = make_plan("gemma3-270m")
    num_blocks = next(n for n in range(10, 10_000) if plan.max_users(n * plan.layout.block_bytes, CONTEXT, 0) == num_users)
    num_running, num_preemptions = run_until_full(plan, num_blocks, num_users + 5)
    assert num_users <= num_running <= num_users + 1
    assert num_preemptions == 0
