import pytest

from octavo.memory.block_copies import BlockCopies
from octavo.memory.block_pool import BlockPool


def test_fresh_blocks_are_handed_out_in_ascending_order():
    pool = BlockPool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    assert (pool.num_free, pool.num_used) == (0, 3)


def test_a_returned_block_goes_out_before_untouched_ones():
    pool = BlockPool(4)
    block_id = pool.take()
    pool.release(block_id)
    assert pool.take() == block_id


def test_cached_blocks_are_evicted_least_recently_used_first():
    pool = BlockPool(3)
    blocks = [pool.take() for _ in range(3)]
    for block_id in blocks:
        pool.set_content(block_id, "content")
    for block_id in (1, 0, 2):
        pool.release(block_id)
    pool.hold(1)
    pool.release(1)  # used again: now the youngest
    order = []
    while pool.num_cached:
        order.append(pool.oldest_cached())
        pool.forget_content(order[-1])
    assert order == [0, 2, 1]
    pool.check_invariants()


def test_a_block_is_used_until_its_last_holder_leaves():
    pool = BlockPool(1)
    block_id = pool.take()
    pool.hold(block_id)
    pool.release(block_id)
    assert pool.num_used == 1
    pool.release(block_id)
    assert pool.num_free == 1
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(block_id)


def test_content_needs_a_holder():
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="no holder"):
        pool.set_content(0, "content")


def test_shrinking_retires_untouched_blocks_and_growing_brings_them_back_first():
    pool = BlockPool(4)
    used = pool.take()
    pool.shrink(2)
    assert (pool.capacity, pool.num_ids, pool.num_free) == (2, 4, 1)
    pool.check_invariants()
    pool.grow(3)
    assert (pool.capacity, pool.num_ids, pool.num_used) == (5, 5, 1)
    assert sorted(pool.take() for _ in range(4)) == [1, 2, 3, 4] and used == 0
    pool.check_invariants()


def test_only_blocks_still_retired_are_reported_as_released():
    pool = BlockPool(4)
    pool.shrink(2)
    pool.grow(1)
    released = pool.drain_released()
    assert len(released) == 1 and pool.drain_released() == []
    assert released[0] not in [pool.take() for _ in range(3)]


def test_the_check_sees_a_block_in_two_states():
    pool = BlockPool(2)
    pool.take()
    pool.ref_counts[1] = 1
    with pytest.raises(AssertionError, match="can be handed out"):
        pool.check_invariants()


def test_a_copy_of_a_copy_reads_the_first_source():
    copies = BlockCopies()
    copies.add(1, 2)
    copies.add(2, 3)
    assert copies.sources() == {1}
    assert copies.drain() == [(1, 2), (1, 3)]
    assert copies.drain() == []


def test_a_source_cannot_be_written_by_another_copy():
    copies = BlockCopies()
    copies.add(1, 2)
    with pytest.raises(AssertionError, match="has not run"):
        copies.add(5, 1)
