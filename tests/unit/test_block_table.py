from octavo.memory.block_table import NO_BLOCK, BlockTable
from octavo.memory.sequence_cache import SequenceCache


def test_dropped_blocks_leave_holes_and_are_returned_once():
    table = BlockTable([7, 8, 9], 0)
    assert table.drop_until(2) == [7, 8]
    assert table.block_ids == [NO_BLOCK, NO_BLOCK, 9]
    assert table.drop_until(2) == [] and table.drop_until(1) == []
    assert table.drop_until(9) == [9] and table.first_held == 3


def test_changes_of_tables_are_reported_once_and_only_from_the_first_changed_entry():
    cache = SequenceCache((), 0, (BlockTable([7, 8], 0), BlockTable([1, 2], 0)), registers=True)
    assert cache.drain_changes() == range(0, 2)
    assert not cache.drain_changes()
    for table in cache.tables:
        table.append(9)
    assert cache.drain_changes() == range(2, 3)


def test_a_mirror_that_was_current_stays_current_when_blocks_are_dropped():
    cache = SequenceCache((), 0, (BlockTable([7, 8, 9], 0),), registers=True)
    cache.drain_changes()
    cache.tables[0].drop_until(2)
    assert not cache.drain_changes()
