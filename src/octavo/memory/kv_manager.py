"""The KV memory as the scheduler sees it.

Owns: which sequence holds which block, sharing, copy-on-write, eviction, and the pool's capacity. Must not know: tensors,
bytes, or when a sequence runs.

Invariants (`octavo.memory.invariants` checks them):
1. Reference counts equal the holders in the tables of the open sequences.
2. A slot that a sequence may write has one holder and no reusable content.
3. Only slots whose K/V was committed are ever found by a match.
4. What fails changes nothing.
"""

import sys
from collections.abc import Callable, Collection, Hashable, Sequence

from octavo.memory.block_copies import BlockCopies
from octavo.memory.block_map import BlockState, map_blocks
from octavo.memory.block_pool import BlockPool
from octavo.memory.block_supply import BlockSupply
from octavo.memory.block_table import NO_BLOCK, BlockTable
from octavo.memory.invariants import check_memory
from octavo.memory.layer_groups import LayerGroup, blocks_needed, first_visible_position
from octavo.memory.memory_stats import EventCounts, MemoryStats, count_slots
from octavo.memory.prefix_match import PrefixMatch, PrefixMatcher
from octavo.memory.prefix_registry import PrefixRegistry
from octavo.memory.prefix_tree import PrefixNode, PrefixTree
from octavo.memory.restore import PrefixRestorer
from octavo.memory.retention import RetentionBook
from octavo.memory.sequence_cache import SequenceCache


class KVManager:
    """Block accounting of all sequences over one pool.

    Args:
        num_blocks: capacity at the start; see `resize`.
        block_size: tokens per block.
        groups: the model's layer groups; each has its own tables over the same pool.
        enable_prefix_caching: False = blocks are shared by `fork` only and nothing is kept after `free`.

    Attributes:
        retention: how long cached blocks are kept.
        quotas: how many cached blocks each owner of namespaces may have.
        restorer: brings blocks into the pool from outside.
        watermark_ratio: of the pool, best kept free when admitting: one more block for every hundredth running sequence.
    """

    watermark_ratio = 0.01

    def __init__(self, *, num_blocks: int, block_size: int, groups: Sequence[LayerGroup], enable_prefix_caching: bool = True):
        assert num_blocks >= 0 and block_size >= 1 and groups, "a memory has a block size of at least 1 and a layer group"
        self.block_size = block_size
        self.groups = tuple(groups)
        self._windows: dict[int, list[int]] = {}  # window -> groups that have it: their tables begin at the same position
        for index, group in enumerate(groups):
            if group.window is not None:
                self._windows.setdefault(group.window, []).append(index)
        self._pool = BlockPool(num_blocks)
        self._tree = PrefixTree(self._pool, [group.window is not None for group in groups])
        self._matcher = PrefixMatcher(self._tree, self._pool, groups, block_size)
        self._registry = PrefixRegistry(self._tree, block_size)
        self._copies = BlockCopies()
        self._caches: set[SequenceCache] = set()
        self.retention = RetentionBook(self._tree, self._pool, groups, block_size)
        self._events = EventCounts()
        self._supply = BlockSupply(self._pool, self._tree, self._copies, self._matcher.ends.evicted, self._events)
        self.quotas = self._supply.quotas
        self.restorer = PrefixRestorer(self._tree, self._pool, self._registry, self._caches, groups, self._supply.make_free)
        self._enable_prefix_caching = enable_prefix_caching

    @property
    def capacity(self) -> int:
        """Blocks of the pool."""
        return self._pool.capacity

    @property
    def largest_capacity(self) -> int:
        """The largest number of blocks that the pool has had."""
        return self._pool.num_ids

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out now: free ones and cached ones without a holder."""
        return self._pool.num_available

    @property
    def num_committed_blocks(self) -> int:
        """Blocks that may have pages."""
        return self._pool.num_committed

    def watch_freed(self) -> Callable[[], list[int]]:
        """See `BlockPool.watch_freed`."""
        return self._pool.watch_freed()

    @property
    def caches(self) -> Collection[SequenceCache]:
        """The open sequences."""
        return self._caches

    def block_map(self) -> list[BlockState]:
        """Returns the state of every block that is not free. Cost: O(blocks)."""
        return map_blocks(self._pool, self._caches, self.block_size)

    # ---- sizes -----------------------------------------------------------------------------------------------------------

    def blocks_needed(self, num_tokens: int, max_step_tokens: int) -> int:
        """Returns the most blocks that one sequence holds at once.

        Args:
            num_tokens: its final length.
            max_step_tokens: most tokens that one step computes for it.
        """
        return blocks_needed(self.groups, self.block_size, num_tokens, max_step_tokens)

    def max_tokens_alone(self, max_step_tokens: int) -> int:
        """Returns the length of the longest sequence that the largest pool holds; `sys.maxsize` if windows bound every group."""
        fits, too_long = 0, (self.largest_capacity + 1) * self.block_size
        if self.blocks_needed(too_long, max_step_tokens) <= self.largest_capacity:
            return sys.maxsize
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if self.blocks_needed(middle, max_step_tokens) <= self.largest_capacity:
                fits = middle
            else:
                too_long = middle
        return fits

    def resize(self, num_blocks: int) -> int:
        """Changes the capacity; growing is immediate, shrinking retires what nothing holds. Returns the capacity reached.

        Blocks keep their ids, which stay below the largest capacity that there was.
        """
        assert num_blocks >= 0, "a capacity is not negative"
        if num_blocks >= self.capacity:
            self._pool.grow(num_blocks - self.capacity)
        else:
            num_gone = min(self.capacity - num_blocks, self._pool.num_available)
            self._supply.make_free(num_gone)
            self._pool.shrink(num_gone)
        return self.capacity

    def drain_released(self) -> list[int]:
        """Returns the block ids retired since the last call, whose pages may go back to the system.

        Call it after the copies of `drain_copies` ran: a retired block may still be one's source.
        """
        assert not self._copies.sources(), "block copies are still to be done"
        return self._pool.drain_released()

    def drop_cached(self, num_blocks: int) -> int:
        """Forgets up to ``num_blocks`` cached blocks, the next to be evicted first; returns how many."""
        return self._supply.drop_cached(num_blocks)

    def decommit(self, num_blocks: int) -> list[int]:
        """Returns up to ``num_blocks`` free blocks whose pages may go back to the system; call it as `drain_released`."""
        assert not self._copies.sources(), "block copies are still to be done"
        return self._pool.decommit(num_blocks)

    # ---- the life of a sequence ------------------------------------------------------------------------------------------

    def match(self, token_ids: Sequence[int], namespace: Hashable = ()) -> PrefixMatch:
        """Returns the longest prefix of ``token_ids`` that can be reused; changes nothing."""
        return self._matcher.find(token_ids, namespace)

    def open(self, token_ids: Sequence[int], namespace: Hashable, match: PrefixMatch | None) -> SequenceCache:
        """Starts a sequence on the blocks of a match, and announces what it will compute.

        A partial block is copied; if there is no block for the copy, the hit ends at the last whole block.

        Args:
            token_ids: all tokens known so far.
            namespace: sequences share only inside one.
            match: from `match` with the same arguments; searched again if blocks were evicted since. None = reuse nothing.
        """
        tables = tuple(BlockTable([], 0) for _ in self.groups)
        cache = SequenceCache(namespace, len(token_ids), tables, registers=self._enable_prefix_caching)
        self._caches.add(cache)
        if match is not None and self._enable_prefix_caching:
            if match.version != self._tree.version:
                match = self.match(token_ids, namespace)
            self._reuse(cache, match)
            cache.num_query_tokens = len(token_ids)
        if cache.registers:
            self._registry.announce(cache, token_ids)
        return cache

    def allocate(self, cache: SequenceCache, num_tokens: int) -> bool:
        """Makes positions ``[cache.num_computed_tokens, num_tokens)`` writable in every group.

        Returns:
            False if there are not enough blocks; then nothing changed.
        """
        if num_tokens <= cache.num_writable_tokens:
            return True
        num_new = max(0, -(-num_tokens // self.block_size) - cache.table_length)
        to_copy = self._tables_to_copy(cache)
        num_needed = num_new * len(cache.tables) + len(to_copy)
        if num_needed > self._pool.num_available or not self._supply.can_copy_to(len(to_copy)):
            return False
        index = cache.num_computed_tokens // self.block_size
        for table in to_copy:
            source = table.block_ids[index]
            table.replace(index, self._supply.take_copy_of(source))
            cache.num_mirrored_blocks = min(cache.num_mirrored_blocks, index)
            self._pool.release(source)
        self._supply.make_free(num_new * len(cache.tables))
        for _ in range(num_new):
            for table in cache.tables:
                table.append(self._pool.take())
        cache.num_writable_tokens = cache.table_length * self.block_size
        return True

    def commit(self, cache: SequenceCache, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Records that the K/V of ``token_ids[:num_computed_tokens]`` is in memory.

        Whole blocks become reusable, and so does the prompt's partial last one; blocks that left the window are given back.
        """
        cache.num_computed_tokens = num_computed_tokens
        if num_computed_tokens < cache.next_commit_tokens:
            return
        assert num_computed_tokens <= min(len(token_ids), cache.table_length * self.block_size), (
            "more computed than there are slots"
        )
        if cache.num_query_tokens:  # counted here: a sequence that never got to run was not served from the cache
            self._events.query_tokens += cache.num_query_tokens
            self._events.hit_tokens += cache.num_hit_tokens
            cache.num_query_tokens = 0
        if cache.registers:
            self._registry.register_blocks(cache, token_ids)
            if num_computed_tokens == cache.num_prompt_tokens:
                self._registry.register_tail(cache, token_ids)
        self._drop_unseen(cache)
        self._set_next_commit(cache)

    def share_tail(self, cache: SequenceCache, token_ids: Sequence[int]) -> None:
        """Makes the computed part of an open sequence's last block reusable now; its whole blocks are already."""
        if cache.registers:
            self._registry.register_tail(cache, token_ids)

    def fork(self, cache: SequenceCache) -> SequenceCache:
        """Starts a sequence that shares every computed block; whoever writes to a shared block first copies it."""
        num_blocks = -(-cache.num_computed_tokens // self.block_size)
        tables = tuple(BlockTable(table.block_ids[:num_blocks], table.first_held) for table in cache.tables)
        child = SequenceCache(cache.namespace, 0, tables, registers=cache.registers)
        child.num_hit_tokens = cache.num_hit_tokens
        child.retentions = cache.retentions
        child.num_computed_tokens = cache.num_computed_tokens
        child.node = cache.node
        child.num_registered_blocks = cache.num_registered_blocks
        cache.num_writable_tokens = child.num_writable_tokens = cache.num_computed_tokens
        for block_id in child.held_blocks():
            self._pool.hold(block_id)
        self._caches.add(child)
        self._set_next_commit(child)
        return child

    def free(self, cache: SequenceCache, token_ids: Sequence[int]) -> None:
        """Ends a sequence and gives all its blocks back; computed ones stay reusable until they are evicted."""
        self._caches.remove(cache)
        self._registry.withdraw(cache)
        if cache.registers:
            self._registry.register_tail(cache, token_ids)
            self.retention.note_use(self._registry.path(cache, token_ids), cache.num_computed_tokens, cache.retentions)
        for block_id in reversed(cache.held_blocks()):  # the deepest is the first to be evicted
            self._pool.release(block_id)
        self._supply.keep_quota(cache.namespace)

    # ---- tiers below -----------------------------------------------------------------------------------------------------

    def watch_evictions(self, on_evict: Callable[[PrefixNode, int], None] | None) -> None:
        """Lets somebody (or nobody) know of every block that is evicted, as (node, layer group), while it still has its content."""
        self._tree.on_evict = on_evict

    def cached_nodes(self) -> list[tuple[PrefixNode, int]]:
        """Returns the node and the layer group of every cached block, the last to be evicted first. Cost: O(blocks cached)."""
        nodes = []
        for block_id in reversed(self._pool.cached_ids()):
            node = self._pool.contents[block_id]
            assert isinstance(node, PrefixNode), f"cached block {block_id} has no node"
            nodes.append((node, node.block_ids.index(block_id)))
        return nodes

    def drain_copies(self) -> list[tuple[int, int]]:
        """Returns the pairs (source, destination) of blocks to copy before this step's forward pass, in any order."""
        return self._copies.drain()

    def reset_prefix_cache(self) -> bool:
        """Forgets all reusable content; what open sequences hold now and compute later is not shared by matches any more.

        Returns:
            False if open sequences still hold blocks computed before the reset.
        """
        self._tree.clear()
        for cache in self._caches:
            cache.registers = False
            cache.announced.clear()
        return not any(cache.num_computed_tokens for cache in self._caches)

    def stats(self) -> MemoryStats:
        """Returns the counts of this moment. Cost: O(blocks held)."""
        slots = count_slots(self._caches, self.block_size)
        return MemoryStats(
            num_blocks=self._pool.capacity,
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
            num_used_blocks=self._pool.num_used,
            num_committed_blocks=self._pool.num_committed,
            num_shared_blocks=slots.num_shared_blocks,
            num_saved_slots=slots.num_saved_slots,
            num_allocated_slots=self._pool.num_used * self.block_size,
            num_computed_slots=slots.num_computed_slots,
            num_query_tokens=self._events.query_tokens,
            num_hit_tokens=self._events.hit_tokens,
            num_copies=self._events.copies,
            num_evictions=self._events.evictions,
        )

    def check_invariants(self) -> None:
        """Asserts that pool, tables and tree agree. Cost: O(everything)."""
        check_memory(self._pool, self._tree, self._caches, self.groups, self.block_size)

    # ---- blocks ----------------------------------------------------------------------------------------------------------

    def _tables_to_copy(self, cache: SequenceCache) -> list[BlockTable]:
        """Returns the tables whose next slot lies in a block that others hold, or that is reusable beyond that slot."""
        index, offset = divmod(cache.num_computed_tokens, self.block_size)
        if offset == 0 or index >= cache.table_length:
            return []
        return [table for table in cache.tables if not self._may_write(table.block_ids[index], offset)]

    def _may_write(self, block_id: int, offset: int) -> bool:
        content = self._pool.contents[block_id]
        if self._pool.ref_counts[block_id] > 1:
            return False
        return not isinstance(content, PrefixNode) or len(content.token_ids) <= offset

    def _drop_unseen(self, cache: SequenceCache) -> None:
        """Gives back the blocks that no later query sees."""
        for window, groups in self._windows.items():
            first_visible = first_visible_position(window, cache.num_computed_tokens) // self.block_size
            for group in groups:
                for block_id in cache.tables[group].drop_until(first_visible):
                    self._pool.release(block_id)

    def _set_next_commit(self, cache: SequenceCache) -> None:
        """Sets the number of computed tokens at which a block fills, the prompt ends, or a block leaves a window."""
        num_computed = cache.num_computed_tokens
        nearest = (num_computed // self.block_size + 1) * self.block_size
        if num_computed < cache.num_prompt_tokens < nearest:
            nearest = cache.num_prompt_tokens
        for window, groups in self._windows.items():
            nearest = min(nearest, (cache.tables[groups[0]].first_held + 1) * self.block_size + window - 1)
        cache.next_commit_tokens = nearest

    # ---- the prefix tree -------------------------------------------------------------------------------------------------

    def _reuse(self, cache: SequenceCache, match: PrefixMatch) -> None:
        """Puts a match's blocks into the empty tables, and copies of the partial one's."""
        if match.tail is None:
            self._hold_prefix(cache, match.nodes[: match.num_whole_blocks], match.num_whole_blocks * self.block_size)
            return
        for block_id in match.tail.block_ids:
            self._pool.hold(block_id)  # neither evicted nor written while it is being copied
        self._hold_prefix(cache, match.nodes, match.num_tokens)
        can_copy = self._supply.can_copy_to(len(cache.tables))
        if can_copy:
            for table, source in zip(cache.tables, match.tail.block_ids, strict=True):
                table.append(self._supply.take_copy_of(source))
        else:
            for block_id in reversed(cache.held_blocks()):
                self._pool.release(block_id)
        for block_id in match.tail.block_ids:
            self._pool.release(block_id)
        if not can_copy:
            self._hold_prefix(cache, match.nodes[: match.num_whole_blocks], match.num_whole_blocks * self.block_size)

    def _hold_prefix(self, cache: SequenceCache, nodes: Sequence[PrefixNode], num_tokens: int) -> None:
        """Fills the tables with the nodes' blocks, as far as the query at ``num_tokens`` sees them."""
        tables = []
        for group, spec in enumerate(self.groups):
            first_held = first_visible_position(spec.window, num_tokens) // self.block_size
            held = [node.block_ids[group] for node in nodes[first_held:]]
            for block_id in held:
                self._pool.hold(block_id)
            tables.append(BlockTable([NO_BLOCK] * first_held + held, first_held))
        cache.tables = tuple(tables)
        cache.node = nodes[-1] if nodes else None
        cache.num_registered_blocks = len(nodes)
        cache.num_hit_tokens = cache.num_computed_tokens = cache.num_writable_tokens = num_tokens
