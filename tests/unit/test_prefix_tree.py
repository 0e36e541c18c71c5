import pytest

from octavo.memory.block_pool import BlockPool
from octavo.memory.prefix_tree import PrefixTree, common_head


@pytest.fixture
def pool():
    return BlockPool(16)


@pytest.fixture
def tree(pool):
    return PrefixTree(pool, [False, True])  # a full and a windowed group


def cached_node(pool, tree, parent, token_ids):
    node = tree.insert(parent, token_ids, None)
    blocks = [pool.take(), pool.take()]
    tree.fill(node, blocks)
    for block_id in blocks:
        pool.release(block_id)
    return node


def any_child(child, length):
    return True


@pytest.mark.parametrize(
    ("query", "key", "length"),
    [((1, 2, 3, 4), (1, 2, 3, 4), 4), ((1, 2, 9), (1, 2, 3, 4), 2), ((5, 6), (5, 6, 7, 8), 2), ((5, 9, 9), (5, 6, 7, 8), 1)],
)
def test_the_longest_common_head_is_found(pool, tree, query, key, length):
    root = tree.root("a")
    for token_ids in [(1, 2, 3, 4), (1, 1, 1, 1), (5, 6, 7, 8), (0,), (1,), (9, 9)]:
        cached_node(pool, tree, root, token_ids)
    node, found = tree.longest_head(root, query, any_child)
    assert (node.token_ids, found) == (key, length)


def test_a_child_that_is_not_accepted_does_not_hide_a_shorter_head(pool, tree):
    root = tree.root("a")
    for token_ids in [(1, 2, 3, 4), (1, 2, 3), (1, 7)]:
        cached_node(pool, tree, root, token_ids)
    node, length = tree.longest_head(root, (1, 2, 3, 5), lambda child, _: child.token_ids == (1, 7))
    assert (node.token_ids, length) == ((1, 7), 1)
    assert tree.longest_head(root, (8, 8), any_child) == (None, 0)


def test_without_its_full_attention_block_a_node_and_all_below_it_go(pool, tree):
    root = tree.root("a")
    parent = cached_node(pool, tree, root, (1, 2))
    child = cached_node(pool, tree, parent, (3, 4))
    tree.evict(parent.block_ids[0])
    assert not parent.attached and not child.attached and not tree.roots
    assert (pool.num_free, pool.num_cached) == (16, 0)


def test_without_its_windowed_block_a_node_stays(pool, tree):
    node = cached_node(pool, tree, tree.root("a"), (1, 2))
    version = tree.version
    tree.evict(node.block_ids[1])
    assert node.attached and not node.is_complete() and tree.version > version
    assert (pool.num_free, pool.num_cached) == (15, 1)


def test_held_blocks_lose_their_content_and_stay_held_when_their_node_goes(pool, tree):
    node = tree.insert(tree.root("a"), (1, 2), None)
    blocks = [pool.take(), pool.take()]
    tree.fill(node, blocks)
    tree.remove(node)
    assert pool.num_used == 2 and pool.contents[blocks[0]] is None
    pool.release(blocks[0])
    assert pool.num_cached == 0


def test_a_block_that_holds_more_tokens_replaces_its_shorter_node(pool, tree):
    root = tree.root("a")
    shorter = tree.insert(root, (1,), None)
    blocks = [pool.take(), pool.take()]
    tree.fill(shorter, blocks)
    longer = tree.insert(root, (1, 2), None)
    tree.fill(longer, blocks)
    assert not shorter.attached and list(root.children) == [(1, 2)] and root.sorted_keys == [(1, 2)]
    assert longer.block_ids == blocks and pool.contents[blocks[0]] is longer


def test_empty_chains_of_any_length_are_removed(pool):
    tree = PrefixTree(pool, [True])
    node = tree.root("a")
    for _ in range(5000):
        node = tree.insert(node, (1,), None)
    block_id = pool.take()
    tree.fill(node, [block_id])
    pool.release(block_id)
    tree.evict(block_id)
    assert not tree.roots and pool.num_free == 16


def test_common_head():
    assert [common_head(left, (1, 2, 3)) for left in [(), (2,), (1, 2), (1, 2, 3, 4), (1, 3, 3)]] == [0, 0, 2, 3, 1]
