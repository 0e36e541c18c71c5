from octavo.memory.tier_index import TierIndex

A, B, C = ((bytes([value]) * 32, 0) for value in (1, 2, 3))


def filled(*names, num_slots=2):
    index = TierIndex(num_slots)
    for name in names:
        index.add(name, (1, 2), index.reserve())
    return index


def test_a_block_is_found_by_name_and_tokens():
    index = filled(A)
    assert index.find(A, (1, 2)) == 0
    assert index.find(A, (1, 3)) is None  # the same key for other tokens: a hash proves nothing
    assert index.find(B, (1, 2)) is None
    assert index.find((A[0], 1), (1, 2)) is None


def test_what_is_being_written_is_not_found_and_its_slot_is_nobody_elses():
    index = TierIndex(2)
    assert {index.reserve(), index.reserve()} == {0, 1}
    assert index.reserve() is None and len(index) == 0
    index.give_back(1)
    assert index.reserve() == 1
    index.check_invariants()


def test_the_least_recently_used_block_makes_way():
    index = filled(A, B)
    index.touch(A)
    index.add(C, (5,), index.reserve())
    assert index.find(B, (1, 2)) is None and index.find(A, (1, 2)) is not None
    index.check_invariants()


def test_a_block_written_twice_keeps_one_slot():
    index = filled(A)
    index.add(A, (1, 2), index.reserve())
    assert len(index) == 1 and index.reserve() is not None
    index.check_invariants()


def test_of_two_slots_with_one_name_the_later_is_loaded():
    index = TierIndex(4)
    index.load({3: (A, (1,)), 0: (B, (1,)), 2: (A, (1,))})
    assert (index.find(A, (1,)), index.find(B, (1,))) == (2, 0)
    assert {index.reserve(), index.reserve()} == {1, 3}
    assert index.reserve() == 0  # the least recently written
    index.check_invariants()


def test_loading_nothing_forgets_everything():
    index = filled(A, B)
    index.load({})
    assert len(index) == 0 and {index.reserve(), index.reserve()} == {0, 1}
