"""The tree of reusable prefixes.

Owns: nodes, their children, and which block stores which node. Must not know: sequences (an owner is opaque here), windows' sizes,
or when anything is evicted.

A node is one block's worth of tokens after its parent's; roots are namespaces. It holds one block per layer group. A node with
fewer tokens than a block is partial: it has no children and is used by copying its block. A node with an owner is announced:
the owner is about to compute it, and it holds no block yet.

Invariants:
1. A child is found by the tuple of its token ids, so a hit is equal by construction and not by a hash.
2. A computed node's parent is computed. It holds a block in every full-attention group; a windowed group's block may be missing.
3. ``pool.contents[block] is node`` exactly when ``block in node.block_ids``.
4. Every leaf holds a block or has an owner; an empty root is removed.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from octavo.memory.block_pool import BlockPool
from octavo.memory.block_table import NO_BLOCK
from octavo.memory.claims import Claim


class PrefixNode:
    """One block's worth of tokens below its parent.

    Attributes:
        token_ids: the node's own tokens; at most a block's worth.
        parent: None for a root.
        children: by their token ids.
        sorted_keys: the keys of ``children`` in ascending order, so that the longest common head is next to where a key would be.
        block_ids: one per layer group; `NO_BLOCK` where missing.
        owner: who is about to compute the node; None once computed.
        attached: False once the node was removed from the tree.
        namespace: a root's name; None below.
        root: the top of the node's tree; itself for a root.
        claims, window_claims: see `octavo.memory.retention`; for blocks of full-attention and of windowed groups.
        is_plain: a sequence used it that asked for nothing; then its parent is plain, too.
        content_key: see `octavo.memory.content_key`; None until somebody asked for it.
    """

    __slots__ = (
        "attached",
        "block_ids",
        "children",
        "claims",
        "content_key",
        "is_plain",
        "namespace",
        "owner",
        "parent",
        "root",
        "sorted_keys",
        "token_ids",
        "window_claims",
    )

    def __init__(
        self,
        token_ids: tuple[int, ...],
        parent: "PrefixNode | None",
        num_groups: int,
        *,
        owner: object | None = None,
        namespace: Hashable = None,
    ):
        self.token_ids = token_ids
        self.parent = parent
        self.children: dict[tuple[int, ...], PrefixNode] = {}
        self.sorted_keys: list[tuple[int, ...]] = []
        self.block_ids = [NO_BLOCK] * num_groups
        self.owner = owner
        self.attached = True
        self.namespace = namespace
        self.root: PrefixNode = self if parent is None else parent.root
        self.claims: tuple[Claim, ...] = ()
        self.window_claims: tuple[Claim, ...] = ()
        self.is_plain = False
        self.content_key: bytes | None = None

    def is_complete(self) -> bool:
        """Returns whether the node is computed and holds a block in every group."""
        return self.owner is None and NO_BLOCK not in self.block_ids

    def is_empty(self) -> bool:
        """Returns whether nothing would be lost with the node."""
        return not self.children and self.owner is None and self.block_ids.count(NO_BLOCK) == len(self.block_ids)


class PrefixTree:
    """Nodes over the blocks of one pool.

    Attributes:
        roots: by namespace.
        version: grows with every removal; a match found under another version may name blocks that are gone.
        on_evict: told of every block that an eviction takes away, as (node, group), while its content is still there.
    """

    def __init__(self, pool: BlockPool, windowed: Sequence[bool]):
        self._pool = pool
        self._windowed = tuple(windowed)
        self.roots: dict[Hashable, PrefixNode] = {}
        self.version = 0
        self.on_evict: Callable[[PrefixNode, int], None] | None = None

    def root(self, namespace: Hashable) -> PrefixNode:
        """Returns the namespace's root, made if there is none."""
        node = self.roots.get(namespace)
        if node is None:
            node = self.roots[namespace] = PrefixNode((), None, len(self._windowed), namespace=namespace)
        return node

    def insert(self, parent: PrefixNode, token_ids: tuple[int, ...], owner: object | None) -> PrefixNode:
        """Adds a child that is not there yet."""
        node = PrefixNode(token_ids, parent, len(self._windowed), owner=owner)
        parent.children[token_ids] = node
        insort(parent.sorted_keys, token_ids)
        return node

    def fill(self, node: PrefixNode, block_ids: Iterable[int]) -> None:
        """Marks a node as computed and gives it those of the blocks (one per group) that it lacks."""
        node.owner = None
        owner = quota_owner(node.root.namespace)
        for group, block_id in enumerate(block_ids):
            if block_id == NO_BLOCK or node.block_ids[group] != NO_BLOCK:
                continue
            shorter = self._pool.contents[block_id]
            if isinstance(shorter, PrefixNode):  # the same block, registered when it held fewer tokens
                self.remove(shorter)
            node.block_ids[group] = block_id
            self._pool.set_content(block_id, node, owner)

    def lay(self, parent: PrefixNode, token_ids: tuple[int, ...], block_ids: Iterable[int]) -> PrefixNode:
        """Returns the computed child with these tokens, made if there is none, with those of the blocks that it lacked."""
        node = parent.children.get(token_ids) or self.insert(parent, token_ids, None)
        self.fill(node, block_ids)
        return node

    def longest_head(
        self, parent: PrefixNode, token_ids: tuple[int, ...], accepts: Callable[[PrefixNode, int], bool]
    ) -> tuple[PrefixNode | None, int]:
        """Finds the accepted child that shares the longest head with ``token_ids``.

        Args:
            accepts: called with a child and the length of its common head.

        Returns:
            The child and the head's length; ``(None, 0)`` if no accepted child shares a token.
        """
        keys = parent.sorted_keys
        position = bisect_left(keys, token_ids)
        best: PrefixNode | None = None
        best_length = 0
        for indices in (range(position, len(keys)), range(position - 1, -1, -1)):  # heads shorten away from the position
            for index in indices:
                length = common_head(keys[index], token_ids)
                if length <= best_length:
                    break
                child = parent.children[keys[index]]
                if accepts(child, length):
                    best, best_length = child, length
                    break
        return best, best_length

    def evict(self, block_id: int) -> PrefixNode:
        """Drops a cached block, and every node that cannot be reached or used without it; returns the block's own node."""
        node = self._pool.contents[block_id]
        assert isinstance(node, PrefixNode), f"block {block_id} is not in the tree"
        group = node.block_ids.index(block_id)
        self._report_loss(node, group)
        if not self._windowed[group]:
            self.remove(node)
            return node
        self.version += 1
        node.block_ids[group] = NO_BLOCK
        self._pool.forget_content(block_id)
        if node.is_empty():
            self.remove(node)
        return node

    def remove(self, node: PrefixNode) -> None:
        """Takes a node with all below it out of the tree; its unheld blocks become free. Empty ancestors go too."""
        self.version += 1
        self._detach(node)
        parent = node.parent
        while parent is not None:
            del parent.children[node.token_ids]
            del parent.sorted_keys[bisect_left(parent.sorted_keys, node.token_ids)]
            if not parent.is_empty():
                return
            parent.attached = False
            node, parent = parent, parent.parent
        del self.roots[node.namespace]

    def clear(self) -> None:
        """Removes everything; unheld blocks become free."""
        self.version += 1
        for root in self.roots.values():
            self._detach(root)
        self.roots.clear()

    def _report_loss(self, node: PrefixNode, group: int) -> None:
        if self.on_evict is None:
            return
        if self._windowed[group]:
            self.on_evict(node, group)
            return
        for lost in subtree(node):
            for its_group, block_id in enumerate(lost.block_ids):
                if block_id != NO_BLOCK:
                    self.on_evict(lost, its_group)

    def _detach(self, top: PrefixNode) -> None:
        for node in subtree(top):
            node.attached = False
            for block_id in node.block_ids:
                if block_id != NO_BLOCK:
                    self._pool.forget_content(block_id)


def quota_owner(namespace: Hashable) -> Hashable:
    """Returns whose quota a namespace's cached blocks count against: its first part's; None for the namespace without parts."""
    return (namespace[:1] or None) if isinstance(namespace, tuple) else namespace


def subtree(top: PrefixNode) -> Iterator[PrefixNode]:
    """Yields a node and all below it."""
    pending = [top]
    while pending:
        node = pending.pop()
        pending.extend(node.children.values())
        yield node


def common_head(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns how many leading tokens two runs share."""
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length
