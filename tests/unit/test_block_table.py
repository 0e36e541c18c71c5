from octavo.memory.block_table import NO_BLOCK, BlockTable


def test_changes_are_reported_once_and_only_from_the_first_changed_entry():
    table = BlockTable([7, 8], 0)
    assert table.drain_changes() == [(0, [7, 8])]
    assert table.drain_changes() == []
    table.append(9)
    assert table.drain_changes() == [(2, [9])]
    table.append(4)
    table.replace(1, 5)
    assert table.drain_changes() == [(1, [5, 9, 4])]


def test_dropped_blocks_leave_holes_and_are_returned_once():
    table = BlockTable([7, 8, 9], 0)
    assert table.drop_until(2) == [7, 8]
    assert table.block_ids == [NO_BLOCK, NO_BLOCK, 9]
    assert table.drop_until(2) == [] and table.drop_until(1) == []
    assert table.drop_until(9) == [9] and table.first_held == 3


def test_a_mirror_that_was_current_stays_current_when_blocks_are_dropped():
    table = BlockTable([7, 8, 9], 0)
    table.drain_changes()
    table.drop_until(2)
    assert table.drain_changes() == []
