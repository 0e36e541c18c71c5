"""What a KV memory's slots are used for.

Owns: the four kinds of slots, as in Figure 2 of Kwon et al., SOSP 2023, and their mean over time. Must not know: allocators.
"""

from dataclasses import astuple, dataclass, fields

from octavo.memory.kv_manager import KVManager


@dataclass(frozen=True)
class MemorySplit:
    """Slots of one moment; together the whole memory.

    Attributes:
        tokens: hold a token's K/V.
        reservation: will hold one of their sequence's later tokens.
        internal: belong to a sequence that will never use them, or lie behind the last token of a block.
        external: in no reservation and no held block: too broken up, lost to rounding, or kept free.
    """

    tokens: int
    reservation: int
    internal: int
    external: int


def paged_split(kv: KVManager) -> MemorySplit:
    """Returns what the slots of a paged memory are used for, over all layer groups. Cost: O(blocks held)."""
    stats = kv.stats()
    allocated, computed = stats.num_allocated_slots, stats.num_computed_slots
    return MemorySplit(computed, 0, allocated - computed, kv.capacity * kv.block_size - allocated)


class MeanSplit:
    """The mean of splits, each with the time that it lasted."""

    def __init__(self) -> None:
        self._sums = [0.0] * 4

    def add(self, split: MemorySplit, duration_s: float) -> None:
        """Counts one split."""
        for index, slots in enumerate(astuple(split)):
            self._sums[index] += slots * duration_s

    def shares(self) -> dict[str, float] | None:
        """Returns each kind's share of the memory; None if there was no time."""
        total = sum(self._sums)
        names = [field.name for field in fields(MemorySplit)]
        return {name: value / total for name, value in zip(names, self._sums, strict=True)} if total else None
