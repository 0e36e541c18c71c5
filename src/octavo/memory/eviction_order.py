"""The order in which cached blocks are dropped.

Owns: the order: lower priority first, within a priority the least recently added first. Must not know: what blocks hold.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator


class EvictionOrder:
    """Block ids by priority and age; each operation O(1) but for a search among the few priorities in use."""

    def __init__(self) -> None:
        self._buckets: dict[int, OrderedDict[int, None]] = {}  # by priority, least recently added first; none is empty
        self._priorities: list[int] = []  # of the buckets, ascending
        self._priority_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._priority_of)

    def __iter__(self) -> Iterator[int]:
        for priority in self._priorities:
            yield from self._buckets[priority]

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._priority_of

    def add(self, block_id: int, priority: int) -> None:
        """Adds a block as the last of its priority."""
        self._priority_of[block_id] = priority
        bucket = self._buckets.get(priority)
        if bucket is None:
            bucket = self._buckets[priority] = OrderedDict()
            insort(self._priorities, priority)
        bucket[block_id] = None

    def remove(self, block_id: int) -> None:
        """Takes out a block that is in it."""
        priority = self._priority_of.pop(block_id)
        bucket = self._buckets[priority]
        del bucket[block_id]
        if not bucket:
            del self._buckets[priority]
            self._priorities.remove(priority)

    def first(self) -> int:
        """Returns the block to drop next; there must be one."""
        return next(iter(self._buckets[self._priorities[0]]))
