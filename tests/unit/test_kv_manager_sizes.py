import sys

import pytest

from octavo.memory.layer_groups import LayerGroup, group_layers
from octavo.memory.match_end import MatchEnd
from unit.memory_oracle import compute, make, run

FULL = group_layers([None])
WINDOW_8 = (LayerGroup((0,), 8), LayerGroup((1,), None))


# ---- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_a_windowed_sequence_holds_no_more_than_its_window_and_chunk(chunk):
    groups = (LayerGroup((0,), 8),)
    oracle = make(num_blocks=64, block_size=16, groups=groups)
    sequence = oracle.open(range(500), ())
    bound = oracle.manager.blocks_needed(500, chunk)
    assert bound * 16 <= 8 + chunk + 2 * 16
    while sequence.cache.num_computed_tokens < 500:
        oracle.schedule(sequence, chunk)
        assert sequence.cache.num_blocks <= bound
        oracle.run_step()
        assert sequence.cache.num_blocks * 16 <= 8 + 16 + 16
    oracle.check()


def test_a_windowed_hit_needs_only_the_blocks_in_the_window():
    oracle = make(num_blocks=24, groups=WINDOW_8)
    run(oracle, range(41), chunk=8)
    sequence = oracle.open([*range(41), 50, 51], ())
    assert sequence.cache.num_hit_tokens == 41
    windowed, full = sequence.cache.tables
    assert (windowed.first_held, full.first_held) == (8, 0)  # positions 34 … 40 are visible at 41
    compute(oracle, sequence)
    assert oracle.manager.match([*range(40), 99, 99]).num_tokens == 40


def test_a_hit_is_shortened_where_the_window_was_evicted():
    oracle = make(num_blocks=14, groups=WINDOW_8)
    run(oracle, range(40), chunk=4)
    run(oracle, range(100, 104))  # needs two blocks; the windowed ones that were dropped first go first
    match = oracle.manager.match([*range(16), 99, 99])
    assert match.find_end() in (MatchEnd.WINDOW_GONE, MatchEnd.NO_CONTINUATION) and match.num_tokens < 16
    assert oracle.manager.match([*range(40), 99]).num_tokens == 40


@pytest.mark.parametrize("chunk", [4, 40])
def test_a_long_prompt_in_a_small_windowed_pool_is_refused_or_runs(chunk):
    oracle = make(num_blocks=6, groups=(LayerGroup((0,), 8),))
    sequence = oracle.open(range(40), ())
    fits = oracle.manager.blocks_needed(40, chunk) <= 6
    assert fits == (chunk == 4)
    if fits:
        compute(oracle, sequence, chunk=chunk)
    else:
        assert not oracle.schedule(sequence, chunk)


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [FULL, WINDOW_8, (LayerGroup((0,), 1), LayerGroup((1,), None))])
@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.parametrize("num_blocks", [4, 9, 12])
def test_what_fits_alone_runs_alone_and_one_token_more_is_known_not_to_fit(groups, chunk, num_blocks):
    oracle = make(num_blocks=num_blocks, groups=groups)
    num_tokens = oracle.manager.max_tokens_alone(chunk)
    assert oracle.manager.blocks_needed(num_tokens, chunk) <= num_blocks < oracle.manager.blocks_needed(num_tokens + 1, chunk)
    run(oracle, range(1000, 1000 + num_tokens), chunk=chunk)  # leaves cached blocks behind
    sequence = oracle.open(range(num_tokens), ())
    compute(oracle, sequence, chunk=chunk)


def test_windows_alone_bound_no_length():
    manager = make(num_blocks=6, groups=(LayerGroup((0,), 8),)).manager
    assert manager.max_tokens_alone(4) == sys.maxsize
    assert manager.max_tokens_alone(400) < 40


def test_the_pool_grows_at_once_and_shrinks_by_what_nothing_holds():
    oracle = make(num_blocks=8)
    sequence = oracle.open(range(10), ())
    compute(oracle, sequence)
    held = set(sequence.cache.held_blocks())
    assert oracle.manager.resize(2) == 3
    assert not held & set(oracle.manager.drain_released())
    oracle.check()
    assert oracle.manager.num_free_blocks == 0
    assert oracle.manager.resize(9) == 9 and oracle.manager.num_free_blocks == 6
    oracle.free(sequence)
    assert oracle.manager.resize(0) == 0
    assert sorted(oracle.manager.drain_released()) == list(range(9))
    oracle.check()


def test_the_waste_ratio_comes_from_real_counts():
    oracle = make()
    sequence = oracle.open(range(9), ())
    compute(oracle, sequence)
    stats = oracle.manager.stats()
    assert (stats.num_computed_slots, stats.num_allocated_slots) == (9, 12)
