"""`octavo.memory.governor`: the order of what is done about a shortage, and the way back."""

from dataclasses import replace

import pytest

from octavo.memory.governor import CALM_SECONDS, GROWTH_STEPS, Action, ActionKind, Governor, MemoryReading, PoolState

MIB, GIB = 2**20, 2**30
RESERVE = 2 * GIB
HIGH = RESERVE + 500 * MIB  # half of the pool, which is less than a quarter of the reserve
# 1,000 blocks of 1 MiB, of which 300 are held, 200 cached or empty with pages, 500 never used.
POOL = PoolState(MIB, 1000, 1000, 50, 300, 200, 4)


def kinds(actions: list[Action]) -> list[ActionKind]:
    return [action.kind for action in actions]


def short_by(num_bytes: int) -> MemoryReading:
    """Returns a reading from which ``num_bytes`` are missing to the mark up to which shortages are filled."""
    return MemoryReading(HIGH - num_bytes)


def test_enough_memory_asks_for_nothing() -> None:
    governor = Governor(RESERVE)
    for second in range(20):
        assert governor.decide(MemoryReading(3 * GIB), POOL, float(second)) == []
    assert not governor.is_short and governor.is_admitting


def test_small_shortage_takes_what_nobody_holds_and_nothing_else() -> None:
    governor = Governor(RESERVE)
    actions = governor.decide(short_by(600 * MIB), replace(POOL, num_droppable_blocks=700), 0.0)
    assert actions == [
        Action(ActionKind.STOP_ADMITTING),
        Action(ActionKind.DROP, 600),
        Action(ActionKind.SHRINK, 400),  # to what is in memory then: 300 held and 100 left
    ]
    assert governor.is_short and not governor.is_admitting


def test_large_shortage_goes_through_all_stages_in_order() -> None:
    governor = Governor(RESERVE)
    assert governor.decide(short_by(GIB), POOL, 0.0) == [
        Action(ActionKind.STOP_ADMITTING),
        Action(ActionKind.DROP, 200),
        Action(ActionKind.SHRINK, 300),
        Action(ActionKind.PREEMPT),
    ]
    shrunk = replace(POOL, num_blocks=300, num_used_blocks=220, num_droppable_blocks=80, num_running=3)
    assert kinds(governor.decide(short_by(GIB), shrunk, 0.3)) == [ActionKind.DROP, ActionKind.SHRINK, ActionKind.PREEMPT]


def test_last_sequence_is_never_preempted() -> None:
    alone = replace(POOL, num_droppable_blocks=0, num_running=1, num_blocks=300)
    assert kinds(Governor(RESERVE).decide(short_by(GIB), alone, 0.0)) == [ActionKind.STOP_ADMITTING]


@pytest.mark.parametrize("num_needed", [0, 250, 400, 1000])
def test_pool_keeps_what_an_accepted_request_needs(num_needed: int) -> None:
    actions = Governor(RESERVE).decide(short_by(GIB), replace(POOL, num_needed_blocks=num_needed), 0.0)
    shrunk = next((action.num_blocks for action in actions if action.kind is ActionKind.SHRINK), POOL.num_blocks)
    assert shrunk == max(300, num_needed)


@pytest.mark.parametrize(("some", "full", "is_short"), [(0, 0, False), (19, 4, False), (20, 0, True), (0, 5, True)])
def test_stalls_double_the_reserve(some: float, full: float, is_short: bool) -> None:
    governor = Governor(RESERVE)
    governor.decide(MemoryReading(int(1.5 * RESERVE), some, full), POOL, 0.0)
    assert governor.is_short is is_short
    governor.decide(MemoryReading(int(2.1 * RESERVE), some, full), POOL, 1.0)
    assert not governor.is_short


def after_shortage() -> Governor:
    governor = Governor(RESERVE)
    governor.decide(short_by(GIB), POOL, 0.0)
    return governor


def test_nothing_comes_back_before_memory_was_enough_for_a_while() -> None:
    governor, shrunk = after_shortage(), replace(POOL, num_blocks=300, num_droppable_blocks=0)
    calm = MemoryReading(8 * GIB)
    assert governor.decide(calm, shrunk, 10.0) == []
    assert governor.decide(calm, shrunk, 10.0 + CALM_SECONDS - 0.1) == []
    governor.decide(short_by(GIB), shrunk, 12.0)  # starts again
    assert governor.decide(calm, shrunk, 13.0) == []
    assert governor.decide(calm, shrunk, 13.0 + CALM_SECONDS - 0.1) == []
    assert kinds(governor.decide(calm, shrunk, 13.0 + CALM_SECONDS)) == [ActionKind.ADMIT, ActionKind.GROW]


def test_between_the_marks_sequences_start_again_and_the_pool_stays() -> None:
    governor, shrunk = after_shortage(), replace(POOL, num_blocks=300, num_droppable_blocks=0)
    between = MemoryReading(RESERVE + GIB // 4)
    governor.decide(between, shrunk, 1.0)
    assert governor.decide(between, shrunk, 1.0 + CALM_SECONDS) == [Action(ActionKind.ADMIT)]
    assert governor.decide(between, shrunk, 60.0) == []


def test_pool_grows_back_in_steps_to_its_full_size() -> None:
    governor, pool = after_shortage(), replace(POOL, num_blocks=300, num_droppable_blocks=0)
    governor.decide(MemoryReading(8 * GIB), pool, 1.0)
    sizes, now = [], 1.0 + CALM_SECONDS
    while pool.num_blocks < pool.num_full_blocks:
        actions = governor.decide(MemoryReading(8 * GIB), pool, now)
        sizes.append(actions[-1].num_blocks)
        pool, now = replace(pool, num_blocks=sizes[-1]), now + 0.25
    step = -(-1000 // GROWTH_STEPS)
    assert sizes == [*range(300 + step, 1000, step), 1000]
    assert governor.decide(MemoryReading(8 * GIB), pool, now) == []


def test_pool_grows_no_further_than_memory_allows() -> None:
    governor, shrunk = after_shortage(), replace(POOL, num_blocks=310, num_used_blocks=300, num_droppable_blocks=0)
    reading = MemoryReading(RESERVE * 5 // 4 + MIB)
    governor.decide(reading, replace(shrunk, block_bytes=64 * MIB), 1.0)
    actions = governor.decide(reading, replace(shrunk, block_bytes=64 * MIB), 1.0 + CALM_SECONDS)
    assert kinds(actions) == [ActionKind.ADMIT]  # 8 more blocks could be afforded beside those in memory; there are 10
    actions = governor.decide(reading, replace(shrunk, block_bytes=32 * MIB), 2.0 + CALM_SECONDS)
    assert actions == [Action(ActionKind.GROW, 300 + (RESERVE // 4 + MIB) // (32 * MIB))]


@pytest.mark.parametrize("reserve", [GIB, 20 * GIB])
def test_an_emptied_pool_comes_back_however_large_the_reserve_is(reserve: int) -> None:
    """Full, the pool leaves just the reserve; what it gave back is all that is available beside that."""
    governor, emptied = Governor(reserve), replace(POOL, num_blocks=0, num_used_blocks=0, num_droppable_blocks=0, num_running=0)
    governor.decide(MemoryReading(reserve - 1), POOL, 0.0)
    reading = MemoryReading(reserve + 1000 * MIB)
    governor.decide(reading, emptied, 1.0)
    assert kinds(governor.decide(reading, emptied, 1.0 + CALM_SECONDS)) == [ActionKind.ADMIT, ActionKind.GROW]
