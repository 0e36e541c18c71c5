"""Where a contiguous run lies in a memory without paging; a slot is a token's place, or a block's.

Owns: which slots are taken. Must not know: tokens, sequences, or why a run has its length.

Invariants:
1. Runs never overlap and lie inside the arena.
2. A run that does not fit changes nothing.
"""

from bisect import insort
from dataclasses import dataclass
from typing import Protocol


@dataclass(eq=False, slots=True)
class Run:
    """Consecutive slots ``start … start + num_slots``."""

    start: int
    num_slots: int


class Arena(Protocol):
    """A memory of ``capacity`` slots."""

    capacity: int

    def take(self, num_slots: int) -> Run | None:
        """Returns a run of at least ``num_slots`` slots; None if there is no gap for it."""

    def give_back(self, run: Run) -> None:
        """Frees a run."""

    def drain_moved_slots(self) -> int:
        """Returns how many slots were copied to other places since the last call."""


class BuddyArena:
    """Runs are powers of two; a larger one is split into halves, and two free halves are joined again.

    An arena whose capacity is no power of two consists of one whole run for each binary digit of it, the largest first.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._free: dict[int, set[int]] = {}  # num_slots -> starts
        self._whole: dict[int, int] = {}  # start -> num_slots of a run that has no buddy
        start = 0
        for bit in range(capacity.bit_length() - 1, -1, -1):
            if capacity >> bit & 1:
                self._whole[start] = 1 << bit
                self._free.setdefault(1 << bit, set()).add(start)
                start += 1 << bit

    def take(self, num_slots: int) -> Run | None:
        """See `Arena`."""
        size = 1 << (num_slots - 1).bit_length()
        candidates = [free for free, starts in self._free.items() if free >= size and starts]
        if not candidates:
            return None
        found = min(candidates)
        start = min(self._free[found])
        self._free[found].remove(start)
        while found > size:
            found //= 2
            self._free.setdefault(found, set()).add(start + found)
        return Run(start, size)

    def give_back(self, run: Run) -> None:
        """See `Arena`."""
        start, size = run.start, run.num_slots
        base = max(whole for whole in self._whole if whole <= start)
        while size < self._whole[base]:
            buddy = base + ((start - base) ^ size)
            if buddy not in self._free.get(size, ()):
                break
            self._free[size].remove(buddy)
            start, size = min(start, buddy), 2 * size
        self._free.setdefault(size, set()).add(start)

    def drain_moved_slots(self) -> int:
        """See `Arena`."""
        return 0


class CompactingArena:
    """The first gap that is large enough; if none is but all together are, the runs are moved to the front."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._runs: list[Run] = []  # by start
        self._num_moved_slots = 0

    def take(self, num_slots: int) -> Run | None:
        """See `Arena`."""
        if sum(run.num_slots for run in self._runs) + num_slots > self.capacity:
            return None
        start = self._first_gap(num_slots)
        if start is None:
            start = self._compact()
        run = Run(start, num_slots)
        insort(self._runs, run, key=lambda taken: taken.start)
        return run

    def give_back(self, run: Run) -> None:
        """See `Arena`."""
        self._runs.remove(run)

    def drain_moved_slots(self) -> int:
        """See `Arena`."""
        moved, self._num_moved_slots = self._num_moved_slots, 0
        return moved

    def _first_gap(self, num_slots: int) -> int | None:
        end = 0
        for run in self._runs:
            if run.start - end >= num_slots:
                return end
            end = run.start + run.num_slots
        return end if self.capacity - end >= num_slots else None

    def _compact(self) -> int:
        """Moves every run to the front and returns where the free slots begin."""
        end = 0
        for run in self._runs:
            if run.start != end:
                self._num_moved_slots += run.num_slots
                run.start = end
            end += run.num_slots
        return end
