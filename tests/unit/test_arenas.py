"""octavo.memory.arenas: runs lie inside the arena and apart, and what is given back can be taken again."""

import random

import pytest

from octavo.memory.arenas import BuddyArena, CompactingArena

ARENAS = (BuddyArena, CompactingArena)


def check_runs(arena, runs) -> None:
    """Asserts invariant 1."""
    end = 0
    for run in sorted(runs, key=lambda run: run.start):
        assert run.start >= end
        end = run.start + run.num_slots
    assert end <= arena.capacity


@pytest.mark.parametrize("kind", ARENAS)
@pytest.mark.parametrize("seed", range(5))
def test_random_runs_never_overlap(kind, seed: int) -> None:
    source = random.Random(seed)
    arena, runs = kind(1000), []
    for _ in range(400):
        if runs and source.random() < 0.45:
            arena.give_back(runs.pop(source.randrange(len(runs))))
        else:
            num_slots = source.randint(1, 200)
            run = arena.take(num_slots)
            if run is not None:
                assert run.num_slots >= num_slots
                runs.append(run)
        check_runs(arena, runs)
    for run in runs:
        arena.give_back(run)
    assert arena.take(512) is not None, "the gaps were not joined"


def test_buddy_rounds_to_powers_of_two() -> None:
    arena = BuddyArena(64)
    assert [arena.take(num_slots).num_slots for num_slots in (1, 3, 16, 17)] == [1, 4, 16, 32]


def test_buddy_cannot_use_what_is_broken_up() -> None:
    arena = BuddyArena(64)
    runs = [arena.take(16) for _ in range(4)]
    arena.give_back(runs[1])
    arena.give_back(runs[2])
    assert arena.take(32) is None
    arena.give_back(runs[0])
    assert arena.take(32) is not None


def test_capacity_that_is_no_power_of_two_is_used_whole() -> None:
    arena = BuddyArena(15728)
    assert sum(arena.take(2048) is not None for _ in range(8)) == 7
    assert sum(arena.take(16) is not None for _ in range(100)) == (15728 - 7 * 2048) // 16


def test_compaction_moves_what_lies_behind_a_gap() -> None:
    arena = CompactingArena(64)
    runs = [arena.take(16) for _ in range(4)]
    arena.give_back(runs[0])
    arena.give_back(runs[2])
    assert arena.drain_moved_slots() == 0
    assert arena.take(32) is not None
    assert arena.drain_moved_slots() == 32
    assert (runs[1].start, runs[3].start) == (0, 16)
    assert arena.drain_moved_slots() == 0


def test_compaction_that_would_not_help_is_left_alone() -> None:
    arena = CompactingArena(64)
    runs = [arena.take(16) for _ in range(4)]
    arena.give_back(runs[0])
    arena.give_back(runs[2])
    assert arena.take(33) is None
    assert arena.drain_moved_slots() == 0
