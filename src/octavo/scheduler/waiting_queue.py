"""The sequences that wait, in order of service.

Owns: the order. Must not know: why a sequence waits.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from octavo.scheduler.sequence import Sequence

_rank = attrgetter("rank")


class WaitingQueue:
    """Sequences ordered by rank; a preempted one comes back to where it was."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence into its place."""
        insort(self._sequences, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is."""
        del self._sequences[bisect_left(self._sequences, sequence.rank, key=_rank)]
