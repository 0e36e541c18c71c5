"""Prefixes brought into the pool from outside: what enters the tree, and that the books balance at every moment."""

import pytest

from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup

BLOCK = 4
FULL = LayerGroup((0,), None)
WINDOWED = LayerGroup((1,), 6)
TOKENS = list(range(1, 17))  # four blocks


def memory(*groups, num_blocks=16):
    return KVManager(num_blocks=num_blocks, block_size=BLOCK, groups=groups or (FULL,))


def begin(kv, tokens=TOKENS):
    match = kv.match([*tokens, 99])
    num_tokens, missing = kv.restorer.longest(match.nodes, len(tokens), lambda place: True)
    assert num_tokens == len(tokens)
    restore = kv.restorer.begin(tokens, (), match.nodes, missing)
    kv.check_invariants()
    return restore


def finish(kv, restore):
    num_tokens = kv.restorer.finish(restore)
    kv.free(restore.cache, restore.token_ids)
    kv.check_invariants()
    return num_tokens


def compute(kv, tokens):
    cache = kv.open(tokens, (), None)
    assert kv.allocate(cache, len(tokens))
    kv.commit(cache, tokens, len(tokens))
    kv.free(cache, tokens)


def test_what_arrived_is_found():
    kv = memory(FULL, WINDOWED)
    restore = begin(kv)
    # Position 16 sees positions 11 to 15 of the windowed group: blocks 2 and 3.
    assert sorted(restore.incoming) == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert kv.match([*TOKENS, 99]).num_tokens == 0
    assert finish(kv, restore) == 16
    assert kv.match([*TOKENS, 99]).num_tokens == 16
    assert kv.num_free_blocks == 16


def test_a_partial_last_block_arrives_too():
    kv = memory(FULL, WINDOWED)
    restore = begin(kv, TOKENS[:14])
    assert finish(kv, restore) == 14
    assert kv.match([*TOKENS[:14], 99]).num_tokens == 14


def test_a_partial_last_block_that_failed_is_not_registered():
    kv = memory()
    restore = begin(kv, TOKENS[:14])
    restore.failed.add((3, 0))
    assert finish(kv, restore) == 12
    assert kv.match([*TOKENS[:14], 99]).num_tokens == 12


def test_the_longest_prefix_ends_before_the_last_block_that_is_nowhere():
    kv = memory(FULL, WINDOWED)
    assert kv.restorer.longest([], 14, lambda place: place != (3, 1))[0] == 12
    assert kv.restorer.longest([], 14, lambda place: place != (2, 0))[0] == 8
    assert kv.restorer.longest([], 16, lambda place: place != (1, 1))[0] == 16  # block 1 has left the window
    assert kv.restorer.longest([], 14, lambda place: place[1] == 0) == (0, [])


def test_a_held_prefix_is_neither_evicted_nor_written():
    kv = memory(FULL, num_blocks=6)
    compute(kv, TOKENS[:14])
    match = kv.match([*TOKENS[:14], 99])
    cache, blocks = kv.restorer.hold(TOKENS[:14], (), match)
    kv.check_invariants()
    assert sorted(blocks) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert kv.num_free_blocks == 2
    kv.free(cache, TOKENS[:14])
    kv.check_invariants()
    assert kv.num_free_blocks == 6


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOWED)], ids=["full", "mixed"])
def test_who_goes_on_in_a_held_block_copies_it_first(groups):
    kv = memory(*groups)
    prompt = TOKENS[:10]
    cache = kv.open(prompt, (), None)
    assert kv.allocate(cache, 10)
    kv.commit(cache, prompt, 10)  # its last block may be shared now, and the sequence writes on in it
    held, blocks = kv.restorer.hold(prompt, (), kv.match([*prompt, 99]))
    kv.check_invariants()
    assert kv.allocate(cache, 11)
    kept = {blocks[2, group] for group in range(len(groups))}
    assert {source for source, _ in kv.drain_copies()} == kept
    assert kept.isdisjoint(table.block_ids[2] for table in cache.tables)
    kv.commit(cache, [*prompt, 11], 11)
    kv.free(held, prompt)
    kv.free(cache, [*prompt, 11])
    kv.check_invariants()


def test_followers_wait_while_it_is_on_its_way():
    kv = memory()
    restore = begin(kv)
    match = kv.match([*TOKENS, 99])
    assert match.is_awaited and match.num_pending_tokens == 16
    finish(kv, restore)
    assert not match.is_awaited


def test_followers_go_on_when_it_is_given_up():
    kv = memory()
    restore = begin(kv)
    match = kv.match([*TOKENS, 99])
    kv.restorer.give_up(restore)
    kv.check_invariants()
    assert not match.is_awaited and not restore.is_pending
    assert finish(kv, restore) == 16  # it came after all


def test_only_what_is_missing_comes_in():
    kv = memory()
    compute(kv, TOKENS[:8])
    restore = begin(kv)
    assert sorted(restore.incoming) == [(2, 0), (3, 0)]
    assert kv.num_free_blocks == 12  # the two that were cached are held as well
    assert finish(kv, restore) == 16


@pytest.mark.parametrize(("failed", "num_tokens"), [((0, 0), 0), ((2, 0), 8), ((3, 0), 12)])
def test_it_ends_before_the_first_block_that_failed(failed, num_tokens):
    kv = memory()
    restore = begin(kv)
    restore.failed.add(failed)
    assert finish(kv, restore) == num_tokens
    assert kv.match([*TOKENS, 99]).num_tokens == num_tokens
    assert kv.num_free_blocks == 16


def test_a_failed_windowed_block_leaves_the_prefixes_that_do_not_see_it():
    kv = memory(FULL, WINDOWED)
    restore = begin(kv)
    restore.failed.add((3, 1))
    assert finish(kv, restore) == 16
    assert kv.match([*TOKENS, 99]).num_tokens < 12


@pytest.mark.parametrize("failed", [{(3, 0)}, {(2, 0), (3, 0)}])
def test_windows_alone_may_fail_altogether(failed):
    kv = memory(LayerGroup((0,), 6))
    restore = begin(kv)
    assert sorted(restore.incoming) == [(2, 0), (3, 0)]
    restore.failed |= failed
    finish(kv, restore)
    assert kv.match([*TOKENS, 99]).num_tokens == 0


def test_too_few_blocks_change_nothing():
    kv = memory(num_blocks=5)
    cache = kv.open([7] * 8, (), None)
    assert kv.allocate(cache, 8)
    assert begin(kv) is None
    assert kv.num_free_blocks == 3


def test_cached_blocks_of_the_prefix_do_not_count_as_room():
    kv = memory(num_blocks=5)
    compute(kv, TOKENS[:8])
    cache = kv.open([7] * 8, (), None)
    assert kv.allocate(cache, 8)  # one block is free, two are cached, and those are the prefix's own
    assert begin(kv) is None


def test_a_reset_meanwhile_wins():
    kv = memory()
    restore = begin(kv)
    kv.reset_prefix_cache()
    assert finish(kv, restore) == 0
    assert kv.match([*TOKENS, 99]).num_tokens == 0


def test_somebody_who_computes_the_same_meanwhile_is_not_disturbed():
    kv = memory()
    restore = begin(kv)
    compute(kv, TOKENS)
    kv.check_invariants()
    assert kv.match([*TOKENS, 99]).num_tokens == 16
    finish(kv, restore)
    assert kv.match([*TOKENS, 99]).num_tokens == 16


def test_evictions_are_told_while_the_content_is_there():
    kv = memory(FULL, WINDOWED, num_blocks=8)
    compute(kv, TOKENS)
    told = []
    kv.watch_evictions(lambda node, group: told.append((node.token_ids, group, node.block_ids[group])))
    cached = {(node.token_ids, group, node.block_ids[group]) for node, group in kv.cached_nodes()}
    cache = kv.open([50] * 16, (), None)
    assert kv.allocate(cache, 16)
    assert len(told) == 8 and set(told) == cached
