"""octavo.memory.reserving_manager: runs of consecutive blocks, reserved at the start and whole until the end."""

import random

import pytest

from octavo.errors import ConfigError
from octavo.memory.layer_groups import LayerGroup
from octavo.memory.reservation_policies import reserve_exactly, reserve_maximum, reserve_power_of_two
from octavo.memory.reserving_manager import ReservingManager

FULL = LayerGroup((0,), None)
BOTH = (FULL, LayerGroup((1,), 20))


def make_manager(policy=reserve_maximum, *, num_blocks=32, groups=(FULL,), num_output_tokens=20, max_model_len=128):
    """Returns a manager with blocks of 16 tokens, in which every sequence gets an answer of the same length."""
    return ReservingManager(
        num_blocks=num_blocks,
        block_size=16,
        groups=groups,
        policy=policy,
        final_length=lambda token_ids: len(token_ids) + num_output_tokens,
        max_model_len=max_model_len,
    )


def opened(manager, num_prompt_tokens: int):
    """Returns a sequence whose prompt is computed, or None if there is no room for it."""
    token_ids = list(range(num_prompt_tokens))
    cache = manager.open(token_ids, (), manager.match(token_ids))
    if not manager.allocate(cache, num_prompt_tokens):
        manager.free(cache, token_ids)
        return None
    manager.commit(cache, token_ids, num_prompt_tokens)
    manager.check_invariants()
    return cache


@pytest.mark.parametrize(
    ("policy", "num_blocks"), [(reserve_maximum, 8), (reserve_power_of_two, 4), (reserve_exactly, 3)], ids=lambda value: str(value)
)
def test_a_sequence_gets_one_run_of_the_policys_length(policy, num_blocks: int) -> None:
    manager = make_manager(policy)
    opened(manager, 5)
    (table,) = opened(manager, 20).tables  # 20 + 20 tokens; 20 + 32 with the answer rounded up
    assert len(table.block_ids) == num_blocks
    assert table.block_ids == list(range(table.block_ids[0], table.block_ids[0] + num_blocks))


def test_as_many_sequences_run_as_runs_fit() -> None:
    manager = make_manager()
    assert [opened(manager, 5) is not None for _ in range(5)] == [True] * 4 + [False]


def test_layer_groups_cost_no_rounding() -> None:
    three = (FULL, LayerGroup((1,), 20), LayerGroup((2,), 20))
    manager = make_manager(num_blocks=48, groups=three)  # a run is 3 x 8 blocks
    assert [opened(manager, 5) is not None for _ in range(3)] == [True, True, False]


def test_equal_prompts_share_nothing() -> None:
    manager = make_manager()
    first, second = opened(manager, 40), opened(manager, 40)
    assert not set(first.held_blocks()) & set(second.held_blocks())
    assert manager.stats().num_hit_tokens == 0


def test_every_layer_group_has_its_part_of_the_run_and_keeps_it() -> None:
    manager = make_manager(num_blocks=64, groups=BOTH)
    cache = opened(manager, 100)  # far beyond the window of 20
    full, windowed = (table.block_ids for table in cache.tables)
    assert full + windowed == list(range(full[0], full[0] + 16))


def test_slots_are_promised_until_they_are_computed() -> None:
    manager = make_manager()
    cache = opened(manager, 40)
    assert manager.num_promised_slots() == 20
    manager.commit(cache, list(range(50)), 50)
    assert manager.num_promised_slots() == 10
    manager.free(cache, list(range(50)))
    assert manager.num_promised_slots() == 0


def test_a_memory_without_room_for_the_longest_sequence_is_refused() -> None:
    with pytest.raises(ConfigError, match="32 blocks has no contiguous room for one sequence of 600"):
        make_manager(max_model_len=600)


def test_growing_beyond_the_run_is_a_fault() -> None:
    manager = make_manager(reserve_exactly, num_output_tokens=1)
    cache = opened(manager, 15)
    with pytest.raises(AssertionError, match="beyond what was reserved"):
        manager.allocate(cache, 17)


@pytest.mark.parametrize("policy", [reserve_maximum, reserve_power_of_two, reserve_exactly])
def test_random_comings_and_goings_keep_the_books(policy) -> None:
    source, manager, running = random.Random(7), make_manager(policy, num_blocks=61, groups=BOTH, max_model_len=128), []
    for _ in range(300):
        if running and source.random() < 0.5:
            cache = running.pop(source.randrange(len(running)))
            manager.free(cache, list(range(cache.num_computed_tokens)))
        else:
            cache = opened(manager, source.randint(1, 100))
            running += [cache] if cache is not None else []
        manager.check_invariants()
    for cache in running:
        manager.free(cache, list(range(cache.num_computed_tokens)))
    assert manager.num_free_blocks == 61
    assert opened(manager, 100) is not None, "the gaps were not joined"
