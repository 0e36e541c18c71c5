"""The sequences that wait, in order of service.

Owns: the order, and for how many steps each has waited. Must not know: why a sequence waits.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from octavo.scheduler.sequence import Sequence, SequenceStatus

_rank = attrgetter("rank")


class WaitingQueue:
    """Sequences ordered by rank; a preempted one comes back to where it was."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._num_steps = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence into its place."""
        sequence.queued_step = self._num_steps
        insort(self._sequences, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is."""
        sequence.num_waited_steps += self._num_steps - sequence.queued_step
        del self._sequences[bisect_left(self._sequences, sequence.rank, key=_rank)]

    def end_step(self) -> None:
        """Notes that a step was scheduled: who is here now waited for it."""
        self._num_steps += 1

    def num_waited_steps(self, sequence: Sequence) -> int:
        """Returns for how many steps a sequence has waited, now and before."""
        is_waiting = sequence.status is SequenceStatus.WAITING
        return sequence.num_waited_steps + (self._num_steps - sequence.queued_step if is_waiting else 0)
