"""The running sequences: order, rows, and what a batch is told of them."""

from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.running_set import RunningSet
from octavo.scheduler.sequence import Sequence


def sequences(*arrivals):
    return [Sequence(sequence_id=arrival, token_ids=[1], max_tokens=9, arrival=arrival) for arrival in arrivals]


def told(running, computes=()):
    """Returns what a batch with these sequences is told: who came, whose table changed, who was preempted."""
    batch = ScheduledBatch(sequences=list(computes))
    running.tell(batch)
    return batch.admitted, batch.changed_tables, batch.preempted


def test_each_has_a_row_and_stands_in_order_of_arrival():
    running = RunningSet(3)
    third, first, second = sequences(3, 1, 2)
    for sequence in (third, first, second):
        running.add(sequence)
    assert running.sequences == [first, second, third]
    assert sorted(sequence.row for sequence in running.sequences) == [0, 1, 2] and not running.free_rows
    row = first.row
    running.remove(first)
    assert first.row == -1 and running.free_rows == [row] and running.sequences == [second, third]


def test_what_happened_is_told_once_to_a_batch_that_computes():
    running = RunningSet(2)
    first, second = sequences(1, 2)
    running.add(first)
    assert told(running) == ([], [], [])
    assert told(running, [first]) == ([first], [first], [])
    running.note_table(first)
    running.add(second)
    assert told(running, [first, second]) == ([second], [first, second], [])
    assert told(running, [first]) == ([], [], [])


def test_of_who_left_only_the_preemption_is_told():
    running = RunningSet(2)
    first, second = sequences(1, 2)
    running.add(first)
    running.add(second)
    running.remove(first)
    running.note_preempted(first)
    assert told(running) == ([], [], [first])
    assert told(running, [second]) == ([second], [second], [])
