import pytest

from octavo.memory.match_end import MatchEnd
from unit.memory_oracle import compute, make, run

# ---- prefix hits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "block_size"), [(4, 4), (8, 4), (12, 4), (9, 4), (3, 4), (1, 1), (2, 1), (17, 16)])
def test_a_repeated_prompt_hits_all_but_one_token(length, block_size):
    oracle = make(block_size=block_size)
    prompt = list(range(length))
    assert run(oracle, prompt) == 0
    assert run(oracle, prompt) == length - 1
    assert run(oracle, [*prompt, 99]) == length


@pytest.mark.parametrize("position", range(12))
def test_a_hit_ends_at_the_first_different_token(position):
    oracle = make()
    prompt = [50] * 12
    run(oracle, prompt)
    other = list(prompt)
    other[position] += 31
    other[max(0, position - 1)] -= 1 if position else 0
    match = oracle.manager.match(other)
    assert match.num_tokens == max(0, position - 1)
    assert match.find_end() is (MatchEnd.OTHER_TOKEN if match.num_tokens else MatchEnd.NO_CONTINUATION)


def test_namespaces_do_not_share():
    oracle = make()
    run(oracle, [1] * 8, "tenant")
    assert oracle.manager.match([1] * 8, "other").num_tokens == 0
    assert oracle.manager.match([1] * 8, "tenant").num_tokens == 7


def test_a_chat_turn_recomputes_only_its_new_tokens():
    oracle = make()
    first = list(range(10))
    sequence = oracle.open(first, ())
    for token_id in range(20, 27):  # the answer
        compute(oracle, sequence)
        sequence.token_ids.append(token_id)
    oracle.free(sequence)
    second = [*sequence.token_ids, 70, 71]
    assert run(oracle, second) == sequence.cache.num_computed_tokens == 16


def test_a_running_sequence_shares_its_prompt_to_the_token():
    oracle = make()
    leader = oracle.open(range(10), ())
    compute(oracle, leader)
    follower = oracle.open([*range(10), 5], ())
    assert follower.cache.num_hit_tokens == 10
    compute(oracle, follower)
    leader.token_ids += [7, 7, 7]
    compute(oracle, leader)


def test_looking_up_changes_nothing_and_an_unlooked_up_prompt_is_not_counted():
    oracle = make()
    run(oracle, range(8))
    before = oracle.manager.stats()
    oracle.manager.match(list(range(8)))
    bypass = oracle.open(range(8), (), reuse=False)
    compute(oracle, bypass)
    after = oracle.manager.stats()
    assert (after.num_query_tokens, after.num_hit_tokens) == (before.num_query_tokens, before.num_hit_tokens)
    assert bypass.cache.num_hit_tokens == 0


def test_a_sequence_that_never_ran_is_not_counted_as_served_from_the_cache():
    oracle = make()
    run(oracle, range(8))
    before = oracle.manager.stats()
    oracle.free(oracle.open(range(8), ()))
    assert oracle.manager.stats().num_hit_tokens == before.num_hit_tokens


def test_an_outdated_match_is_searched_again():
    oracle = make(num_blocks=4)
    run(oracle, range(12))
    match = oracle.manager.match(list(range(12)))
    run(oracle, range(100, 116))  # evicts all of it
    assert oracle.open_with(range(12), (), match).cache.num_hit_tokens == 0
    oracle.check()


def test_recycled_blocks_keep_no_old_identity():
    oracle = make(num_blocks=4)
    for _ in range(20):
        for first in (100, 200):
            assert run(oracle, range(first, first + 12)) <= 11
            run(oracle, range(300, 316))
            assert oracle.manager.match(list(range(first, first + 12))).num_tokens == 0


def test_shared_prefixes_outlive_the_blocks_behind_them():
    oracle = make(num_blocks=8)
    system = list(range(8))
    run(oracle, [*system, *range(20, 28)])
    run(oracle, [*system, *range(30, 38)])
    run(oracle, range(100, 120))  # five blocks: two were free, the deepest and longest unused ones go
    assert oracle.manager.match([*system, *range(30, 38)]).num_tokens >= 8
    assert oracle.manager.match([*system, *range(20, 28)]).num_tokens == 8


def test_equal_work_done_twice_keeps_one_cached_copy():
    oracle = make()
    pair = [oracle.open(range(9), ()), oracle.open(range(9), ())]
    for sequence in pair:
        oracle.schedule(sequence, 9)
    oracle.run_step()
    for sequence in pair:
        oracle.free(sequence)
    oracle.check()
    assert oracle.manager.stats().num_cached_blocks == 3


def test_without_prefix_caching_nothing_is_kept():
    oracle = make(enable_prefix_caching=False)
    assert [run(oracle, range(9)) for _ in range(2)] == [0, 0]
    stats = oracle.manager.stats()
    assert (stats.num_free_blocks, stats.num_cached_blocks) == (16, 0)


# ---- in flight -------------------------------------------------------------------------------------------------------


def test_a_follower_sees_what_the_leader_is_about_to_compute():
    oracle = make()
    prompt = list(range(10))
    leader = oracle.open(prompt, ())
    first = oracle.manager.match([*prompt, 5])
    assert (first.num_tokens, first.num_pending_tokens, first.is_awaited) == (0, 10, True)
    oracle.schedule(leader, 5)
    oracle.run_step()
    second = oracle.manager.match(prompt)
    assert (second.num_tokens, second.num_pending_tokens) == (4, 5)
    assert oracle.manager.match([*range(6), 99, 99]).num_pending_tokens == 2
    compute(oracle, leader)
    third = oracle.manager.match([*prompt, 5])
    assert (third.num_tokens, third.num_pending_tokens, third.is_awaited) == (10, 0, False)
    assert not first.is_awaited


def test_what_a_leader_announced_vanishes_with_it():
    oracle = make()
    leader = oracle.open(range(10), ())
    oracle.schedule(leader, 5)
    oracle.run_step()
    match = oracle.manager.match(list(range(10)))
    oracle.free(leader)
    oracle.check()
    assert not match.is_awaited
    assert oracle.manager.match(list(range(10))).num_pending_tokens == 0
    assert oracle.manager.match(list(range(10))).num_tokens == 5


@pytest.mark.parametrize("distance", range(5))
@pytest.mark.parametrize("pair", [("P", "P"), ("P", "Px"), ("Px", "P")])
@pytest.mark.parametrize("length", [9, 17])
def test_a_follower_never_reads_what_is_not_computed(distance, pair, length):
    oracle = make()
    prompts = {"P": list(range(length)), "Px": [*range(length), 99]}
    first = oracle.open(prompts[pair[0]], ())
    for _ in range(distance):
        oracle.schedule(first, 5)
        oracle.run_step()
    second = oracle.open(prompts[pair[1]], ())
    while any(sequence.cache.num_computed_tokens < len(sequence.token_ids) for sequence in (first, second)):
        for sequence in (first, second):
            oracle.schedule(sequence, 5)
        oracle.run_step()  # verifies every visible slot
        oracle.check()


# ---- allocation, copy-on-write ---------------------------------------------------------------------------------------


def test_a_refused_allocation_changes_nothing_and_a_granted_one_takes_what_it_needs():
    oracle = make(num_blocks=2)
    sequence = oracle.open(range(9), ())
    assert not oracle.manager.allocate(sequence.cache, 9)
    assert oracle.manager.num_free_blocks == 2 and sequence.cache.table_length == 0
    assert oracle.manager.allocate(sequence.cache, 8) and oracle.manager.num_free_blocks == 0


def test_a_pool_just_large_enough_serves_a_partial_hit():
    oracle = make(num_blocks=3)
    assert run(oracle, range(10)) == 0
    assert run(oracle, [*range(10), 50, 51]) == 8  # no block to copy the third to: the hit ends before it


def test_forks_share_until_they_write():
    oracle = make()
    parent = oracle.open(range(6), ())
    compute(oracle, parent)
    children = [oracle.fork(parent) for _ in range(3)]
    stats = oracle.manager.stats()
    assert (stats.num_used_blocks, stats.num_shared_blocks, stats.num_saved_slots) == (2, 2, 18)
    for token_id, sequence in enumerate([parent, *children]):
        sequence.token_ids.append(token_id)
        oracle.schedule(sequence, 1)
    oracle.run_step()
    oracle.check()
    assert oracle.manager.stats().num_used_blocks == 5  # the first block, and one last block each
    assert oracle.manager.stats().num_copies == 3  # the last to write writes in place
    for sequence in [parent, *children]:
        oracle.free(sequence)
    oracle.check()


def test_a_fork_in_the_middle_of_a_step_does_not_see_what_the_parent_writes():
    oracle = make()
    parent = oracle.open([0, 1, 2, 3, 4], ())
    compute(oracle, parent)
    parent.token_ids.append(7)
    oracle.schedule(parent, 1)
    child = oracle.fork(parent)
    oracle.run_step()
    oracle.free(parent)  # its block is now reusable to the sixth token, and the child holds it
    child.token_ids.append(8)
    compute(oracle, child)
    follower = oracle.open([0, 1, 2, 3, 4, 7, 9], ())
    assert follower.cache.num_hit_tokens == 6
    compute(oracle, follower)  # verifies that the sixth slot still holds what the parent wrote


def test_a_source_may_be_handed_out_in_the_step_that_copies_it():
    oracle = make(num_blocks=4)
    run(oracle, range(6))
    follower = oracle.open([*range(6), 9], ())
    other = oracle.open(range(100, 108), ())
    assert oracle.schedule(other, 8)  # takes the follower's source
    assert oracle.schedule(follower, 1)
    assert oracle.manager.stats().num_free_blocks == oracle.manager.stats().num_cached_blocks == 0
    oracle.run_step()
    oracle.check()


def holders(oracle, block_id):
    return [cache for cache in oracle.manager.caches if block_id in cache.held_blocks()]


def test_the_holders_of_a_block_are_known():
    oracle = make()
    parent = oracle.open(range(6), ())
    compute(oracle, parent)
    child = oracle.fork(parent)
    child.token_ids.append(1)
    compute(oracle, child)
    first, last = parent.cache.tables[0].block_ids
    assert set(map(id, holders(oracle, first))) == {id(parent.cache), id(child.cache)}
    assert holders(oracle, last) == [parent.cache]


# ---- reset -----------------------------------------------------------------------------------------------------------


def test_after_a_reset_nothing_computed_before_is_found():
    oracle = make()
    run(oracle, range(8))
    running = oracle.open(range(50, 59), ())
    compute(oracle, running)
    child = oracle.fork(running)
    assert oracle.manager.reset_prefix_cache() is False  # a sequence still holds old K/V
    running.token_ids += [1] * 8
    compute(oracle, running)
    oracle.free(running)
    oracle.free(child)
    oracle.check()
    assert oracle.manager.match(list(range(8))).num_tokens == 0
    assert oracle.manager.match([*range(50, 59), 1, 1, 1]).num_tokens == 0
    assert oracle.manager.reset_prefix_cache() is True
    assert run(oracle, range(8)) == 0 and run(oracle, range(8)) == 7


def test_a_closed_sequence_cannot_be_freed_again():
    oracle = make()
    sequence = oracle.open(range(5), ())
    oracle.free(sequence)
    with pytest.raises(KeyError):
        oracle.manager.free(sequence.cache, range(5))
