"""Counts of the memory, for metrics and for the waste ratio.

Owns: the record and how it is counted. Must not know: who reads it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.memory.sequence_cache import SequenceCache


@dataclass(frozen=True)
class MemoryStats:
    """One moment's counts; ``query`` to ``eviction`` counters only grow.

    Attributes:
        num_blocks: the capacity; equals free + cached + used.
        num_committed_blocks: blocks that may have pages: handed out since their pages last went back to the system.
        num_shared_blocks: blocks with more than one holder.
        num_saved_slots: computed slots that further holders would need if nothing were shared.
        num_allocated_slots: slots of all used blocks.
        num_computed_slots: those of them that hold a token's K/V.
        num_query_tokens: tokens looked up in the prefix cache by sequences that ran.
        num_hit_tokens: those of them that were found.
        num_copies: blocks copied (partial hits and copy-on-write).
        num_evictions: cached blocks dropped to make room.
    """

    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_used_blocks: int
    num_committed_blocks: int
    num_shared_blocks: int
    num_saved_slots: int
    num_allocated_slots: int
    num_computed_slots: int
    num_query_tokens: int
    num_hit_tokens: int
    num_copies: int
    num_evictions: int


@dataclass(slots=True)
class EventCounts:
    """The counters behind `MemoryStats` that only grow."""

    query_tokens: int = 0
    hit_tokens: int = 0
    copies: int = 0
    evictions: int = 0


@dataclass(slots=True)
class SlotUse:
    """What open sequences do with their blocks."""

    num_shared_blocks: int
    num_saved_slots: int
    num_computed_slots: int


def count_slots(caches: Iterable[SequenceCache], block_size: int) -> SlotUse:
    """Counts the slots of all held blocks. Cost: O(blocks held), a shared one counting once per holder."""
    filled: dict[int, list[int]] = {}  # block id -> computed slots of each holder
    for cache in caches:
        for table in cache.tables:
            for index in range(table.first_held, len(table.block_ids)):
                num_slots = min(max(cache.num_computed_tokens - index * block_size, 0), block_size)
                filled.setdefault(table.block_ids[index], []).append(num_slots)
    computed = sum(max(slots) for slots in filled.values())
    return SlotUse(
        num_shared_blocks=sum(len(slots) > 1 for slots in filled.values()),
        num_saved_slots=sum(sum(slots) for slots in filled.values()) - computed,
        num_computed_slots=computed,
    )
