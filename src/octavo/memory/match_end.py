"""Why a match in the prefix cache is not longer.

Owns: the reasons, and the memory of what was evicted lately. Must not know: how a match is found, when anything is evicted.
"""

from collections.abc import Hashable, Sequence
from enum import Enum

from octavo.memory.content_key import next_key, node_key, root_key
from octavo.memory.prefix_tree import PrefixNode, PrefixTree, common_head

NUM_REMEMBERED = 4096  # evicted blocks; some hundred bytes each


class MatchEnd(Enum):
    """Why a match is not longer."""

    ALL_MATCHED = "all tokens but the last are cached"
    WINDOW_GONE = "a longer prefix is known, but blocks inside its sliding window were evicted"
    EVICTED = "the next block was cached, but was evicted"
    OTHER_SALT = "a longer prefix is cached under another salt"
    OTHER_TOKEN = "what is cached goes on with another token"
    NO_CONTINUATION = "nothing cached continues the prefix"


class EvictedPrefixes:
    """The prefixes whose last block was evicted lately, by their keys; a key is proof enough for an explanation."""

    def __init__(self) -> None:
        self._keys: dict[bytes, None] = {}  # oldest first

    def add(self, node: PrefixNode) -> None:
        """Remembers a node that was evicted."""
        self._keys[node_key(node)] = None
        if len(self._keys) > NUM_REMEMBERED:
            del self._keys[next(iter(self._keys))]

    def has(self, parent_key: bytes, token_ids: Sequence[int]) -> bool:
        """Returns whether the block of these tokens after the prefix of that key was evicted lately."""
        return next_key(parent_key, token_ids) in self._keys


class EndFinder:
    """Says why matches in one tree end where they do."""

    def __init__(self, tree: PrefixTree, block_size: int):
        self._tree = tree
        self._block_size = block_size
        self.evicted = EvictedPrefixes()

    def find(self, token_ids: Sequence[int], namespace: Hashable, nodes: Sequence[PrefixNode], num_tokens: int) -> MatchEnd:
        """Returns why a match is not longer.

        Args:
            token_ids: all tokens of the prompt.
            nodes: the whole blocks known, in order.
            num_tokens: length of the match.
        """
        wanted = token_ids[: max(len(token_ids) - 1, 0)]
        num_known = len(nodes) * self._block_size
        if num_tokens == len(wanted):
            return MatchEnd.ALL_MATCHED
        if num_tokens < num_known:
            return MatchEnd.WINDOW_GONE
        last = nodes[-1] if nodes else self._tree.roots.get(namespace)
        rest = wanted[num_known:]
        if self.evicted.has(root_key(namespace) if last is None else node_key(last), rest[: self._block_size]):
            return MatchEnd.EVICTED
        if any(self._count_cached(root, wanted) > num_tokens for name, root in self._tree.roots.items() if name != namespace):
            return MatchEnd.OTHER_SALT
        if (
            num_tokens > 0
            and last is not None
            and any(child.owner is None and _parts(child, rest) for child in last.children.values())
        ):
            return MatchEnd.OTHER_TOKEN
        return MatchEnd.NO_CONTINUATION

    def _count_cached(self, node: PrefixNode, token_ids: Sequence[int]) -> int:
        """Returns how many tokens of a run the whole blocks below a node hold."""
        size = self._block_size
        for start in range(0, len(token_ids) - size + 1, size):
            child = node.children.get(tuple(token_ids[start : start + size]))
            if child is None or child.owner is not None:
                return start
            node = child
        return len(token_ids) // size * size


def _parts(child: PrefixNode, token_ids: Sequence[int]) -> bool:
    """Returns whether a node has another token than those where both have one."""
    length = common_head(child.token_ids, tuple(token_ids[: len(child.token_ids)]))
    return length < min(len(child.token_ids), len(token_ids))
