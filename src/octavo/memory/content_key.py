"""Names for blocks that outlive the process: a chain of hashes over token ids.

Owns: how a prefix becomes a key. Must not know: where blocks are stored.

A key says where to look, never that something is equal: whoever finds a block by its key compares its token ids too.

Invariants:
1. A block's key depends on its own tokens and on all before them, through its parent's key, and on the namespace.
"""

from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b

from octavo.memory.prefix_tree import PrefixNode

KEY_BYTES = 32


def root_key(namespace: Hashable) -> bytes:
    """Returns the key from which a namespace's chains start."""
    return blake2b(repr(namespace).encode(), digest_size=KEY_BYTES, person=b"octavo root").digest()


def next_key(parent_key: bytes, token_ids: Sequence[int]) -> bytes:
    """Returns the key of the block with these tokens below the block with that key; the simulator's ids exceed 32 bits."""
    return blake2b(parent_key + array("Q", token_ids).tobytes(), digest_size=KEY_BYTES).digest()


def node_key(node: PrefixNode) -> bytes:
    """Returns a node's key; it is computed once and kept in the node."""
    path: list[PrefixNode] = []
    while node.content_key is None and node.parent is not None:
        path.append(node)
        node = node.parent
    if node.content_key is None:
        node.content_key = root_key(node.namespace)
    key = node.content_key
    for below in reversed(path):
        key = below.content_key = next_key(key, below.token_ids)
    return key
