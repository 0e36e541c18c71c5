"""How a sequence's blocks enter the prefix tree.

Owns: announcing what will be computed, registering what was, and withdrawing what will not be. Must not know: who holds or
evicts blocks.

Invariants:
1. Only computed slots are registered.
2. Of two sequences that computed the same tokens, the first one's blocks are registered; the other's stay private to it.
"""

from collections.abc import Sequence

from octavo.memory.prefix_tree import PrefixNode, PrefixTree
from octavo.memory.sequence_cache import SequenceCache


class PrefixRegistry:
    """Writes sequences' paths into one tree."""

    def __init__(self, tree: PrefixTree, block_size: int):
        self._tree = tree
        self.block_size = block_size

    def announce(self, cache: SequenceCache, token_ids: Sequence[int]) -> None:
        """Puts nodes for the tokens to be computed into the tree, so that others can wait for them."""
        node = cache.node or self._tree.root(cache.namespace)
        for start in range(cache.num_registered_blocks * self.block_size, len(token_ids), self.block_size):
            key = tuple(token_ids[start : start + self.block_size])
            child = node.children.get(key)
            if child is None:
                child = self._tree.insert(node, key, cache)
                cache.announced.append(child)
            node = child

    def withdraw(self, cache: SequenceCache) -> None:
        """Takes back what the sequence announced and did not compute."""
        for node in reversed(cache.announced):
            if node.attached and node.owner is cache:
                self._tree.remove(node)

    def register_blocks(self, cache: SequenceCache, token_ids: Sequence[int]) -> None:
        """Makes the whole computed blocks reusable."""
        if cache.num_computed_tokens >= self.block_size:
            self._lay_path(cache, token_ids)

    def path(self, cache: SequenceCache, token_ids: Sequence[int]) -> list[PrefixNode]:
        """Returns the nodes of the sequence's computed tokens in order: its whole blocks, and the one that holds what is left."""
        num_whole, offset = divmod(cache.num_computed_tokens, self.block_size)
        node = cache.node
        if node is None or not node.attached or cache.num_registered_blocks != num_whole:
            return []
        nodes: list[PrefixNode] = []
        last: PrefixNode | None = node
        while last is not None and last.parent is not None:
            nodes.append(last)
            last = last.parent
        nodes.reverse()
        key = tuple(token_ids[num_whole * self.block_size : cache.num_computed_tokens])
        tail, length = self._tree.longest_head(node, key, lambda child, _: child.owner is None)
        return [*nodes, tail] if tail is not None and length == offset else nodes

    def register_tail(self, cache: SequenceCache, token_ids: Sequence[int]) -> None:
        """Makes the partial last block reusable, unless a cached block starts with the same tokens."""
        index, offset = divmod(cache.num_computed_tokens, self.block_size)
        if offset == 0:
            return
        parent = self._lay_path(cache, token_ids)
        key = tuple(token_ids[index * self.block_size : cache.num_computed_tokens])
        if key not in parent.children:
            _, length = self._tree.longest_head(parent, key, lambda child, _: child.is_complete())
            if length == offset:
                return
        self._tree.lay(parent, key, [table.block_ids[index] for table in cache.tables])

    def _lay_path(self, cache: SequenceCache, token_ids: Sequence[int]) -> PrefixNode:
        """Returns the node of the last whole computed block; where the path left the tree, it is laid again from the root."""
        node, start = cache.node, cache.num_registered_blocks
        if node is None or not node.attached:
            node, start = self._tree.root(cache.namespace), 0
        num_blocks = cache.num_computed_tokens // self.block_size
        for index in range(start, num_blocks):
            key = tuple(token_ids[index * self.block_size : (index + 1) * self.block_size])
            node = self._tree.lay(node, key, [table.block_ids[index] for table in cache.tables])
        cache.node, cache.num_registered_blocks = node, num_blocks
        return node
