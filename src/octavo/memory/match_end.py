"""Why a match in the prefix cache is not longer.

Owns: the reasons, and the memory of what was evicted lately. Must not know: how a match is found, when anything is evicted.
"""

from collections.abc import Hashable, Iterable, Sequence
from enum import Enum

from octavo.memory.content_key import next_key, node_key, root_key
from octavo.memory.prefix_tree import PrefixNode, PrefixTree, common_head

TENANT = "tenant"  # the first word of the part of a namespace that names a tenant
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
        num_wanted, num_known = max(len(token_ids) - 1, 0), len(nodes) * self._block_size
        if num_tokens == num_wanted:
            return MatchEnd.ALL_MATCHED
        if num_tokens < num_known:
            return MatchEnd.WINDOW_GONE
        last = nodes[-1] if nodes else self._tree.roots.get(namespace)
        block = tuple(token_ids[num_known : min(num_known + self._block_size, num_wanted)])
        if self.evicted.has(root_key(namespace) if last is None else node_key(last), block):
            return MatchEnd.EVICTED
        if len(block) == self._block_size and self._is_under_another_root(namespace, [*(node.token_ids for node in nodes), block]):
            return MatchEnd.OTHER_SALT
        if num_tokens > 0 and last is not None and any(_parts(child, block) for child in last.children.values()):
            return MatchEnd.OTHER_TOKEN
        return MatchEnd.NO_CONTINUATION

    def _is_under_another_root(self, namespace: Hashable, blocks: Sequence[tuple[int, ...]]) -> bool:
        """Returns whether these whole blocks are cached in another namespace of the same tenant: of others' nobody learns."""
        first = blocks[0]  # nearly all roots lack this one already
        roots = [root for root in self._tree.roots.values() if first in root.children and root.namespace != namespace]
        return any(tenant_of(root.namespace) == tenant_of(namespace) and _is_cached(root, blocks) for root in roots)


def tenant_of(namespace: Hashable) -> Hashable:
    """Returns the tenant that a namespace belongs to: its first part, if that is a pair of `TENANT` and a name; else None."""
    first = namespace[0] if isinstance(namespace, tuple) and namespace else None
    return first if isinstance(first, tuple) and first[0] == TENANT else None


def _is_cached(node: PrefixNode, blocks: Iterable[tuple[int, ...]]) -> bool:
    """Returns whether a run of whole blocks below a node is computed."""
    for block in blocks:
        child = node.children.get(block)
        if child is None or child.owner is not None:
            return False
        node = child
    return True


def _parts(child: PrefixNode, block: tuple[int, ...]) -> bool:
    """Returns whether a computed node has another token than those of the block where both have one."""
    return child.owner is None and common_head(child.token_ids, block) < min(len(child.token_ids), len(block))
