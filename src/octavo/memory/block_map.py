"""The state of every block, for people to look at.

Owns: the record and how it is gathered. Must not know: who looks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.memory.block_pool import BlockPool
from octavo.memory.prefix_tree import PrefixNode
from octavo.memory.sequence_cache import SequenceCache


@dataclass
class BlockState:
    """One block of the pool that is not free.

    Attributes:
        num_tokens: tokens whose K/V it holds.
        holders: the open caches that hold it, with the layer group of each.
        is_reusable: it can be found by a prefix match.
        eviction_rank: 0 for the cached block that is dropped next; None while the block is held.
    """

    block_id: int
    num_tokens: int = 0
    holders: list[tuple[SequenceCache, int]] = field(default_factory=list)
    is_reusable: bool = False
    eviction_rank: int | None = None


def map_blocks(pool: BlockPool, caches: Iterable[SequenceCache], block_size: int) -> list[BlockState]:
    """Returns the held and cached blocks in order of their ids. Cost: O(blocks)."""
    states: dict[int, BlockState] = {}
    for rank, block_id in enumerate(pool.cached_ids()):
        states[block_id] = BlockState(block_id, eviction_rank=rank)
    for cache in caches:
        for group, table in enumerate(cache.tables):
            for index in range(table.first_held, len(table.block_ids)):
                state = states.setdefault(table.block_ids[index], BlockState(table.block_ids[index]))
                state.holders.append((cache, group))
                num_tokens = min(max(cache.num_computed_tokens - index * block_size, 0), block_size)
                state.num_tokens = max(state.num_tokens, num_tokens)
    for state in states.values():
        content = pool.contents[state.block_id]
        if isinstance(content, PrefixNode):
            state.is_reusable = True
            state.num_tokens = max(state.num_tokens, len(content.token_ids))
    return [states[block_id] for block_id in sorted(states)]
