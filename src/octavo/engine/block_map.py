"""The block map with the names that clients know.

Owns: the record. Must not know: how it is shown.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.engine.request import Choice
from octavo.memory.kv_manager import KVManager


@dataclass(frozen=True)
class BlockHolder:
    """A sequence that holds a block in one of its layer groups."""

    request_id: str
    sequence_id: int
    group: int


@dataclass(frozen=True)
class BlockEntry:
    """A block that is not free.

    Attributes:
        state: used when anything holds it, else cached.
        ref_count: its holders: sequences, and prefixes that move to or from a file.
        num_tokens: tokens whose K/V it holds.
        is_reusable: it can be found by a prefix match.
        eviction_rank: 0 for the cached block that is dropped next; None while it is held.
        holders: the sequences among its holders.
    """

    block_id: int
    state: str
    ref_count: int
    num_tokens: int
    is_reusable: bool
    eviction_rank: int | None
    holders: list[BlockHolder]


@dataclass(frozen=True)
class BlockMap:
    """The pool.

    Attributes:
        blocks: those that are not free, by their ids.
    """

    block_size: int
    num_blocks: int
    num_free_blocks: int
    blocks: list[BlockEntry]


def describe_blocks(kv: KVManager, choices: Iterable[Choice]) -> BlockMap:
    """Returns the map of this moment. Cost: O(blocks)."""
    choice_of = {id(choice.sequence.cache): choice for choice in choices if choice.sequence.cache is not None}
    blocks = []
    for block in kv.block_map():
        holders = [
            BlockHolder(choice_of[id(cache)].request.request_id, choice_of[id(cache)].sequence.sequence_id, group)
            for cache, group in block.holders
            if id(cache) in choice_of
        ]
        state = "used" if block.holders else "cached"
        blocks.append(
            BlockEntry(block.block_id, state, len(block.holders), block.num_tokens, block.is_reusable, block.eviction_rank, holders)
        )
    return BlockMap(kv.block_size, kv.capacity, kv.capacity - len(blocks), blocks)
