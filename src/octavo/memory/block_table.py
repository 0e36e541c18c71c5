"""A sequence's blocks in logical order, for one layer group.

Owns: the list of ids. Must not know: reference counts (the manager keeps them equal to the tables) or tokens.

Invariants:
1. ``block_ids[i]`` stores positions ``[i * block_size, (i + 1) * block_size)``; `NO_BLOCK` where the block left the window.
2. Exactly the first `first_held` entries are `NO_BLOCK`.
"""

NO_BLOCK = -1


class BlockTable:
    """Block ids of one sequence in one layer group.

    Attributes:
        block_ids: see invariant 1. Changed only through this class's methods.
        first_held: index of the first block that is still held.
    """

    __slots__ = ("block_ids", "first_held")

    def __init__(self, block_ids: list[int], first_held: int):
        self.block_ids = block_ids
        self.first_held = first_held

    def append(self, block_id: int) -> None:
        """Adds a block at the end."""
        self.block_ids.append(block_id)

    def replace(self, index: int, block_id: int) -> None:
        """Puts another block at ``index``."""
        self.block_ids[index] = block_id

    def drop_until(self, index: int) -> list[int]:
        """Forgets the blocks before ``index`` and returns those that were held."""
        if index <= self.first_held:
            return []
        dropped = self.block_ids[self.first_held : index]
        self.block_ids[self.first_held : index] = [NO_BLOCK] * len(dropped)
        self.first_held += len(dropped)
        return dropped
