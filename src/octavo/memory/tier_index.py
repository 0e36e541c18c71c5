"""Which blocks lie in a lower tier, and where.

Owns: the slots of the tier, what each holds, and which is given up next. Must not know: how slots are read or written.

A block is named by its content key (`octavo.memory.content_key`) and its layer group, and found only if its token ids are equal.

Invariants:
1. A slot is free, reserved (being written), or holds one block; never two of these.
2. What is reserved is not found; it is found once it was added.
"""

from collections import OrderedDict
from dataclasses import dataclass

BlockName = tuple[bytes, int]  # content key, layer group


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block in the tier."""

    slot: int
    token_ids: tuple[int, ...]


class TierIndex:
    """The books of a tier with ``num_slots`` slots."""

    def __init__(self, num_slots: int):
        self.num_slots = num_slots
        self._stored: OrderedDict[BlockName, StoredBlock] = OrderedDict()  # least recently used first
        self._free = list(range(num_slots - 1, -1, -1))  # handed out from the end

    def __len__(self) -> int:
        return len(self._stored)

    def load(self, found: dict[int, tuple[BlockName, tuple[int, ...]]]) -> None:
        """Starts again with what an earlier process left, and nothing else.

        Args:
            found: by slot, the least recently used first. Of two slots with one name the later is kept.
        """
        self._stored.clear()
        for slot, (name, token_ids) in found.items():
            self._stored.pop(name, None)
            self._stored[name] = StoredBlock(slot, token_ids)
        used = {block.slot for block in self._stored.values()}
        self._free = [slot for slot in range(self.num_slots - 1, -1, -1) if slot not in used]

    def find(self, name: BlockName, token_ids: tuple[int, ...]) -> int | None:
        """Returns the slot of the block with that name and those tokens; None if there is none."""
        block = self._stored.get(name)
        return block.slot if block is not None and block.token_ids == token_ids else None

    def touch(self, name: BlockName) -> None:
        """Makes a stored block the last to be given up."""
        self._stored.move_to_end(name)

    def reserve(self) -> int | None:
        """Returns a slot to write to: a free one, else the least recently used block's; None if all are being written."""
        if self._free:
            return self._free.pop()
        if not self._stored:
            return None
        _, block = self._stored.popitem(last=False)
        return block.slot

    def add(self, name: BlockName, token_ids: tuple[int, ...], slot: int) -> None:
        """Records that a reserved slot holds a block now; an older one of that name is dropped."""
        self.remove(name)
        self._stored[name] = StoredBlock(slot, token_ids)

    def give_back(self, slot: int) -> None:
        """Frees a reserved slot that was not written."""
        self._free.append(slot)

    def remove(self, name: BlockName) -> None:
        """Drops a block, if it is there."""
        block = self._stored.pop(name, None)
        if block is not None:
            self._free.append(block.slot)

    def check_invariants(self) -> None:
        """Asserts invariant 1."""
        used = [block.slot for block in self._stored.values()]
        slots = used + self._free
        assert len(slots) == len(set(slots)), "a slot is used twice"
        assert all(0 <= slot < self.num_slots for slot in slots), "a slot is outside the tier"
