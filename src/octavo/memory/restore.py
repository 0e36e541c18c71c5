"""Bringing blocks of a prefix into the pool from outside.

Owns: the blocks that are held while their content is on its way, and their entry into the prefix tree. Must not know: where the
content comes from.

A restore looks like an open sequence to the rest of the memory: it holds the blocks of the prefix, those that are cached already
included, and announces the nodes to come, so that sequences with the same prefix wait instead of computing it.

Invariants:
1. A block enters the tree only after its content arrived.
2. A prefix of L tokens is restored with what the query at position L sees: all blocks of full-attention groups, and a windowed
   group's from the window's first on. Its last block may be partial.
3. Nobody writes to a block of a prefix that is held.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from octavo.memory.block_pool import BlockPool
from octavo.memory.block_table import NO_BLOCK, BlockTable
from octavo.memory.layer_groups import LayerGroup, first_visible_position
from octavo.memory.prefix_match import PrefixMatch
from octavo.memory.prefix_registry import PrefixRegistry
from octavo.memory.prefix_tree import PrefixNode, PrefixTree
from octavo.memory.sequence_cache import SequenceCache

Place = tuple[int, int]  # index of the block in the prefix, layer group


@dataclass(eq=False)
class Restore:
    """A prefix on its way into the pool.

    Attributes:
        token_ids: the prefix.
        incoming: where the content of each missing block belongs: place in the prefix to block id.
        is_pending: False once it ended, or once nobody should wait for it any longer.
    """

    cache: SequenceCache
    token_ids: list[int]
    incoming: dict[Place, int]
    failed: set[Place] = field(default_factory=set)
    is_pending: bool = True


class PrefixRestorer:
    """Starts and ends restores of one memory.

    Attributes:
        on_fill: told of blocks that were handed out to be filled by something else than a step.
    """

    def __init__(
        self,
        tree: PrefixTree,
        pool: BlockPool,
        registry: PrefixRegistry,
        caches: set[SequenceCache],
        groups: Sequence[LayerGroup],
        make_free: Callable[[int], None],
    ):
        self._tree = tree
        self._pool = pool
        self._registry = registry
        self._caches = caches
        self._groups = tuple(groups)
        self._block_size = registry.block_size
        self._make_free = make_free
        self.on_fill: Callable[[Iterable[int]], None] | None = None

    def longest(self, nodes: Sequence[PrefixNode], num_tokens: int, has: Callable[[Place], bool]) -> tuple[int, list[Place]]:
        """Finds the longest prefix that memory and a place outside have together.

        Args:
            nodes: the computed nodes of the prefix, as far as there are any.
            num_tokens: of the longest prefix that is wanted; a shorter one ends with a whole block.
            has: whether a block is outside.

        Returns:
            The prefix's length in tokens, and the places of the blocks that memory lacks.
        """
        while num_tokens:
            places = self._missing(nodes, num_tokens)
            absent = [place[0] for place in places if not has(place)]
            if not absent:
                return num_tokens, places
            num_tokens = max(absent) * self._block_size  # ends before the last block that is nowhere
        return 0, []

    def begin(
        self, token_ids: Sequence[int], namespace: Hashable, nodes: Sequence[PrefixNode], missing: Sequence[Place]
    ) -> Restore | None:
        """Takes the blocks for a prefix and announces it.

        Args:
            token_ids: the prefix.
            nodes: its computed nodes, as far as there are any; nothing was evicted since they were found.
            missing: from `longest`.

        Returns:
            The restore, whose cache is open from now on; None, and nothing changed, if there are not enough blocks.
        """
        incoming = dict.fromkeys(missing, NO_BLOCK)
        held = [nodes[place[0]].block_ids[place[1]] for place in self._needed(len(token_ids)) if place not in incoming]
        num_taken_back = sum(self._pool.ref_counts[block_id] == 0 for block_id in held)
        if len(missing) > self._pool.num_available - num_taken_back:
            return None
        for block_id in held:
            self._pool.hold(block_id)
        self._make_free(len(missing))
        incoming = {place: self._pool.take() for place in missing}
        if self.on_fill is not None:
            self.on_fill(incoming.values())
        cache = self._open(len(token_ids), namespace, nodes, incoming)
        self._caches.add(cache)
        self._registry.announce(cache, token_ids)
        return Restore(cache, list(token_ids), incoming)

    def finish(self, restore: Restore) -> int:
        """Puts what arrived into the tree; the caller frees the cache next.

        Returns:
            How many tokens of the prefix are known now: it ends before the first failed block of a full-attention group.
        """
        restore.is_pending = False
        cache = restore.cache
        if not cache.registers:  # the tree was cleared meanwhile
            return 0
        cache.registers = False  # what did not arrive must not be registered when the cache is freed
        num_blocks = cache.table_length
        lost = [index for index, group in restore.failed if self._groups[group].window is None]
        num_good = min(lost, default=num_blocks)
        while num_good and not self._arrived(restore, num_good - 1):  # a last block of windowed groups alone, all failed
            num_good -= 1
        if num_good:
            self._lay_path(restore, num_good)
        return min(num_good * self._block_size, len(restore.token_ids))

    def hold(self, token_ids: Sequence[int], namespace: Hashable, match: PrefixMatch) -> tuple[SequenceCache, dict[Place, int]]:
        """Keeps a computed prefix in memory, unchanged, until the cache is freed; call it between steps.

        A sequence that goes on in the prefix's partial last block copies it first. That takes a block more than the sequence was
        admitted with: in a pool that it needs whole, it waits until the cache is freed.

        Args:
            match: of the whole prefix; nothing was evicted since it was found.

        Returns:
            The cache, and the blocks by place.
        """
        assert match.num_tokens == len(token_ids), "only what is in memory can be held"
        nodes = [*match.nodes, match.tail] if match.tail else match.nodes
        blocks = {(index, group): nodes[index].block_ids[group] for index, group in self._needed(len(token_ids))}
        for block_id in blocks.values():
            self._pool.hold(block_id)
        if match.tail is not None:
            self._end_writes_to(match.tail.block_ids)
        cache = self._open(len(token_ids), namespace, nodes, {})
        cache.registers = False
        self._caches.add(cache)
        return cache, blocks

    def give_up(self, restore: Restore) -> None:
        """Lets those that wait for the restore go on without it; its blocks stay held until it is finished."""
        restore.is_pending = False
        self._registry.withdraw(restore.cache)

    def _end_writes_to(self, block_ids: Collection[int]) -> None:
        for cache in self._caches:
            index = cache.num_computed_tokens // self._block_size
            if index < cache.table_length and any(table.block_ids[index] in block_ids for table in cache.tables):
                cache.num_writable_tokens = cache.num_computed_tokens

    def _first_needed(self, group: int, num_tokens: int) -> int:
        """Returns the first block of a group that the query at position ``num_tokens`` sees."""
        return first_visible_position(self._groups[group].window, num_tokens) // self._block_size

    def _needed(self, num_tokens: int) -> list[Place]:
        num_blocks = -(-num_tokens // self._block_size)
        return [
            (index, group)
            for group in range(len(self._groups))
            for index in range(self._first_needed(group, num_tokens), num_blocks)
        ]

    def _missing(self, nodes: Sequence[PrefixNode], num_tokens: int) -> list[Place]:
        return [
            (index, group)
            for index, group in self._needed(num_tokens)
            if index >= len(nodes) or nodes[index].block_ids[group] == NO_BLOCK
        ]

    def _open(self, num_tokens: int, namespace: Hashable, nodes: Sequence[PrefixNode], incoming: dict[Place, int]) -> SequenceCache:
        tables = []
        for group in range(len(self._groups)):
            first = self._first_needed(group, num_tokens)
            ids = [NO_BLOCK] * first
            for index in range(first, -(-num_tokens // self._block_size)):
                block_id = incoming.get((index, group))
                ids.append(nodes[index].block_ids[group] if block_id is None else block_id)
            tables.append(BlockTable(ids, first))
        cache = SequenceCache(namespace, 0, tuple(tables), registers=True)
        cache.num_computed_tokens = cache.num_writable_tokens = num_tokens
        return cache

    def _arrived(self, restore: Restore, index: int) -> bool:
        return any(block_id != NO_BLOCK for block_id in self._good_blocks(restore, index))

    def _good_blocks(self, restore: Restore, index: int) -> list[int]:
        tables = restore.cache.tables
        return [NO_BLOCK if (index, group) in restore.failed else table.block_ids[index] for group, table in enumerate(tables)]

    def _lay_path(self, restore: Restore, num_blocks: int) -> None:
        node = self._tree.root(restore.cache.namespace)
        for index in range(num_blocks):
            key = tuple(restore.token_ids[index * self._block_size : (index + 1) * self._block_size])
            node = self._tree.lay(node, key, self._good_blocks(restore, index))
