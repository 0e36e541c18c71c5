"""Block copies that must happen before the step's forward pass.

Owns: the pairs (source, destination) since the last drain. Must not know: why a block is copied.

Invariants:
1. No block is both a source and a destination, so the copies may run in any order; destinations are distinct.
2. A source may be handed out again before the drain, but not as a destination: nothing writes to it until the copies ran.
"""


class BlockCopies:
    """The queue of copies."""

    def __init__(self) -> None:
        self._source_of: dict[int, int] = {}  # by destination

    def add(self, source: int, destination: int) -> None:
        """Queues a copy. A source that is itself a destination stands for the block that it will be copied from."""
        assert destination not in self.sources(), f"block {destination} is the source of a copy that has not run"
        self._source_of[destination] = self._source_of.get(source, source)

    def sources(self) -> set[int]:
        """Returns the blocks that must not become a destination before the drain."""
        return set(self._source_of.values())

    def drain(self) -> list[tuple[int, int]]:
        """Returns the queued pairs ``(source, destination)`` and empties the queue."""
        pairs = [(source, destination) for destination, source in self._source_of.items()]
        self._source_of.clear()
        return pairs
