"""The sequences that run.

Owns: their order, their rows, and what the runner must be told of both. Must not know: blocks, budgets, who is to run.

Invariants:
1. A sequence has a row of its own from `add` to `remove`, and none otherwise.
2. What came, changed or was preempted is told once, in the next step; who left is not told to have come or changed.
"""

from bisect import bisect_left, insort

from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.sequence import Sequence, by_arrival


class RunningSet:
    """Running sequences.

    Attributes:
        sequences: in order of arrival.
        free_rows: those that no sequence has; the last one is the next to be given.
    """

    def __init__(self, max_num_seqs: int):
        self.sequences: list[Sequence] = []
        self.free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._added: list[Sequence] = []
        self._changed: list[Sequence] = []
        self._preempted: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Gives a sequence a row."""
        sequence.row = self.free_rows.pop()
        insort(self.sequences, sequence, key=by_arrival)
        self._added.append(sequence)
        self._changed.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence's row back."""
        del self.sequences[bisect_left(self.sequences, sequence.arrival, key=by_arrival)]
        self.free_rows.append(sequence.row)
        sequence.row = -1
        for untold in (self._added, self._changed):
            if sequence in untold:
                untold.remove(sequence)

    def note_table(self, sequence: Sequence) -> None:
        """Notes that a running sequence's block table changed."""
        self._changed.append(sequence)

    def note_preempted(self, sequence: Sequence) -> None:
        """Notes that a sequence lost its blocks."""
        self._preempted.append(sequence)

    def tell(self, batch: ScheduledBatch) -> None:
        """Writes into a batch what happened since the one before; of a batch that computes nothing, nobody reads the tables."""
        if batch.sequences:
            batch.admitted, self._added = self._added, []
            batch.changed_tables, self._changed = self._changed, []
        batch.preempted, self._preempted = self._preempted, []
