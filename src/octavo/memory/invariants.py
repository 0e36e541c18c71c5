"""The integrity check of the whole memory.

Owns: what must hold between pool, tables and tree at every moment. Must not know: how it came to be.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain

from octavo.memory.block_pool import BlockPool
from octavo.memory.block_table import NO_BLOCK
from octavo.memory.layer_groups import LayerGroup, first_visible_position
from octavo.memory.prefix_tree import PrefixNode, PrefixTree, subtree
from octavo.memory.sequence_cache import SequenceCache


def check_memory(
    pool: BlockPool,
    tree: PrefixTree,
    caches: Collection[SequenceCache],
    groups: Sequence[LayerGroup],
    block_size: int,
) -> None:
    """Asserts that every block is in one state, counts equal holders, no slot has two writers, and the tree is consistent."""
    pool.check_invariants()
    _check_counts(pool, caches)
    for cache in caches:
        _check_tables(cache, groups, block_size)
        _check_writable_slots(cache, pool, block_size)
    _check_tree(tree, pool, caches, groups, block_size)


def _check_counts(pool: BlockPool, caches: Collection[SequenceCache]) -> None:
    holders = Counter(block_id for cache in caches for block_id in cache.held_blocks())
    for block_id, count in enumerate(pool.ref_counts):
        assert count == holders[block_id], f"block {block_id} counts {count} holders, {holders[block_id]} tables hold it"
    for cache in caches:
        held = cache.held_blocks()
        assert len(held) == len(set(held)), "a sequence holds a block twice"


def _check_tables(cache: SequenceCache, groups: Sequence[LayerGroup], block_size: int) -> None:
    for table, group in zip(cache.tables, groups, strict=True):
        ids = table.block_ids
        assert len(ids) == cache.table_length, "tables of one sequence differ in length"
        assert len(ids) * block_size >= cache.num_computed_tokens, "computed tokens beyond the last block"
        assert ids[: table.first_held] == [NO_BLOCK] * table.first_held, "a block before the window is held"
        assert NO_BLOCK not in ids[table.first_held :], "a block inside the window is missing"
        visible = first_visible_position(group.window, cache.num_computed_tokens)
        assert table.first_held == visible // block_size, (
            f"first held block is {table.first_held}, first visible position {visible}"
        )


def _check_writable_slots(cache: SequenceCache, pool: BlockPool, block_size: int) -> None:
    if cache.num_writable_tokens <= cache.num_computed_tokens:
        return
    index, offset = divmod(cache.num_computed_tokens, block_size)
    for position in range(index * block_size, cache.num_writable_tokens, block_size):
        first_slot = offset if position == index * block_size else 0
        for table in cache.tables:
            block_id = table.block_ids[position // block_size]
            assert pool.ref_counts[block_id] == 1, f"block {block_id} is writable and has {pool.ref_counts[block_id]} holders"
            content = pool.contents[block_id]
            num_reusable = len(content.token_ids) if isinstance(content, PrefixNode) else 0
            assert num_reusable <= first_slot, f"block {block_id} is writable from slot {first_slot}, reusable to {num_reusable}"


def _check_tree(
    tree: PrefixTree,
    pool: BlockPool,
    caches: Collection[SequenceCache],
    groups: Sequence[LayerGroup],
    block_size: int,
) -> None:
    in_tree: dict[int, PrefixNode] = {}
    for node in chain.from_iterable(map(subtree, tree.roots.values())):
        assert node.attached, "a removed node is still in the tree"
        assert node.sorted_keys == sorted(node.children), "sorted keys are not the children's keys"
        if node.parent is None:
            assert tree.roots.get(node.namespace) is node and node.children, "an empty root is kept"
            continue
        _check_node(node, caches, groups, block_size)
        in_tree.update((block_id, node) for block_id in node.block_ids if block_id != NO_BLOCK)
    contents = {block_id: content for block_id, content in enumerate(pool.contents) if content is not None}
    assert contents == in_tree, "the pool's contents and the tree's blocks differ"


def _check_node(node: PrefixNode, caches: Collection[SequenceCache], groups: Sequence[LayerGroup], block_size: int) -> None:
    assert node.parent is not None and node.parent.children[node.token_ids] is node, "a node is not its parent's child"
    assert 1 <= len(node.token_ids) <= block_size, "a node has no tokens, or more than a block's"
    assert not node.children or len(node.token_ids) == block_size, "a partial node has children"
    assert not node.is_empty(), "an empty leaf is kept"
    if node.owner is not None:
        assert node.owner in caches, "the owner of an announced node is gone"
        assert all(block_id == NO_BLOCK for block_id in node.block_ids), "an announced node holds blocks"
        return
    assert node.parent.owner is None, "a computed node has an announced parent"
    for block_id, group in zip(node.block_ids, groups, strict=True):
        assert group.window is not None or block_id != NO_BLOCK, "a node lacks a block of a full-attention group"
