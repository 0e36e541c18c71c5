"""How much of a token run is in the prefix cache.

Owns: the search for the longest usable prefix, windows included. Must not know: sequences; it changes nothing.

Invariants:
1. At least one token is left to compute, so that there are logits.
2. A hit of L tokens has, in every group, the blocks of all positions that the query at position L can see.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from octavo.memory.block_pool import BlockPool
from octavo.memory.block_table import NO_BLOCK
from octavo.memory.layer_groups import LayerGroup, first_visible_position
from octavo.memory.match_end import EndFinder, MatchEnd
from octavo.memory.prefix_tree import PrefixNode, PrefixTree


@dataclass(frozen=True)
class PrefixMatch:
    """The longest usable prefix of a token run.

    Attributes:
        num_tokens: length of the prefix.
        num_pending_tokens: tokens after it that running sequences are about to compute for this very prefix.
        find_end: says why it is not longer, as long as the tree has not changed.
        nodes: the whole blocks known, in order.
        tail: the node whose block is copied for the last ``num_tokens % block_size`` tokens; None when there are none.
        announced: the node whose computation completes the pending tokens; None when there are none.
        num_held_blocks: blocks of the prefix that open sequences hold already, over all groups: reusing them takes none of the
            available ones.
        num_whole_blocks: length of the longest usable prefix without ``tail``, in blocks.
        version: the tree's version when this was found.
    """

    num_tokens: int
    num_pending_tokens: int
    find_end: Callable[[], MatchEnd]
    nodes: tuple[PrefixNode, ...]
    tail: PrefixNode | None
    announced: PrefixNode | None
    num_held_blocks: int
    num_whole_blocks: int
    version: int

    @property
    def is_awaited(self) -> bool:
        """Whether the pending tokens are still to come. O(1): while it is true, searching again finds nothing more to wait for."""
        return self.announced is not None and self.announced.attached and self.announced.owner is not None


class PrefixMatcher:
    """Searches one tree for prefixes that satisfy every layer group."""

    def __init__(self, tree: PrefixTree, pool: BlockPool, groups: Sequence[LayerGroup], block_size: int):
        self._tree = tree
        self.ends = EndFinder(tree, block_size)
        self._ref_counts = pool.ref_counts
        self._groups = tuple(groups)
        self._block_size = block_size
        self._windows = [(group, spec.window) for group, spec in enumerate(groups) if spec.window is not None]

    def find(self, token_ids: Sequence[int], namespace: Hashable) -> PrefixMatch:
        """Returns the longest usable prefix of ``token_ids`` in the namespace."""
        limit = max(len(token_ids) - 1, 0)
        root = self._tree.roots.get(namespace)
        if root is None:
            return PrefixMatch(0, 0, partial(self.ends.find, token_ids, namespace, (), 0), (), None, None, 0, 0, self._tree.version)
        nodes = self._walk(root, token_ids[:limit], computed=True)
        num_known = len(nodes) * self._block_size
        last = nodes[-1] if nodes else root
        first_present = self._first_present(nodes, len(nodes))
        num_whole_blocks = self._count_usable(nodes, first_present)
        tail, tail_length = self._find_tail(last, token_ids[num_known:limit], num_known, first_present)
        num_tokens = num_known + tail_length if tail else num_whole_blocks * self._block_size
        announced, num_announced = self._find_announced(last, token_ids[num_known:limit])
        num_pending = num_known + num_announced - num_tokens if num_tokens >= num_known else 0
        return PrefixMatch(
            num_tokens=num_tokens,
            num_pending_tokens=max(0, num_pending),
            find_end=partial(self.ends.find, token_ids, namespace, nodes, num_tokens),
            nodes=tuple(nodes),
            tail=tail,
            announced=announced if num_pending > 0 else None,
            num_held_blocks=self._count_held(nodes, num_tokens),
            num_whole_blocks=num_whole_blocks,
            version=self._tree.version,
        )

    def _walk(self, node: PrefixNode, token_ids: Sequence[int], *, computed: bool) -> list[PrefixNode]:
        """Follows whole blocks from ``node``, either computed or announced ones."""
        size = self._block_size
        nodes: list[PrefixNode] = []
        for start in range(0, len(token_ids) - size + 1, size):
            child = node.children.get(tuple(token_ids[start : start + size]))
            if child is None or (child.owner is None) != computed:
                break
            nodes.append(child)
            node = child
        return nodes

    def _first_present(self, nodes: Sequence[PrefixNode], num_blocks: int) -> list[int]:
        """Returns, for each window, where the unbroken run of blocks before ``num_blocks`` starts; at most a window back."""
        starts = []
        for group, window in self._windows:
            start = first_visible_position(window, num_blocks * self._block_size) // self._block_size
            for index in range(num_blocks - 1, start - 1, -1):
                if nodes[index].block_ids[group] == NO_BLOCK:
                    start = index + 1
                    break
            starts.append(start)
        return starts

    def _count_usable(self, nodes: Sequence[PrefixNode], first_present: list[int]) -> int:
        """Returns the longest usable prefix in blocks; ``first_present`` belongs to all nodes."""
        num_blocks = len(nodes)
        while not self._sees_all(first_present, num_blocks * self._block_size):
            num_blocks = max(first_present) - 1  # ends before the last block that is missing
            first_present = self._first_present(nodes, num_blocks)
        return num_blocks

    def _sees_all(self, first_present: Sequence[int], num_tokens: int) -> bool:
        """Returns whether the query at position ``num_tokens`` finds all that its windows show."""
        size = self._block_size
        return all(
            first * size <= first_visible_position(window, num_tokens)
            for first, (_, window) in zip(first_present, self._windows, strict=True)
        )

    def _count_held(self, nodes: Sequence[PrefixNode], num_tokens: int) -> int:
        num_blocks = num_tokens // self._block_size
        return sum(
            self._ref_counts[node.block_ids[group]] > 0
            for group, spec in enumerate(self._groups)
            for node in nodes[first_visible_position(spec.window, num_tokens) // self._block_size : num_blocks]
        )

    def _find_tail(
        self, parent: PrefixNode, token_ids: Sequence[int], num_known: int, first_present: Sequence[int]
    ) -> tuple[PrefixNode | None, int]:
        """Finds the child whose block can be copied for the longest head of what follows the whole blocks."""
        return self._tree.longest_head(
            parent,
            tuple(token_ids[: self._block_size]),
            lambda child, length: child.is_complete() and self._sees_all(first_present, num_known + length),
        )

    def _find_announced(self, node: PrefixNode, token_ids: Sequence[int]) -> tuple[PrefixNode | None, int]:
        """Returns the last announced node below ``node`` that shares tokens, and how many are announced up to it."""
        nodes = self._walk(node, token_ids, computed=False)
        num_tokens = len(nodes) * self._block_size
        rest = tuple(token_ids[num_tokens : num_tokens + self._block_size])
        last = nodes[-1] if nodes else None
        partial, length = self._tree.longest_head(last or node, rest, lambda child, _: child.owner is not None)
        return partial or last, num_tokens + length
