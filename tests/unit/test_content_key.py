from octavo.memory.block_pool import BlockPool
from octavo.memory.content_key import next_key, node_key, root_key
from octavo.memory.prefix_tree import PrefixTree


def test_a_key_depends_on_namespace_all_tokens_and_their_cut():
    root, salted = root_key(()), root_key((("salt", "a"),))
    keys = {
        next_key(next_key(root, (1, 2)), (3, 4)),
        next_key(next_key(root, (2, 1)), (3, 4)),
        next_key(next_key(salted, (1, 2)), (3, 4)),
        next_key(root, (1, 2, 3, 4)),
        next_key(root, (1, 2)),
    }
    assert len(keys) == 5


def test_a_nodes_key_is_the_chain_of_its_path():
    tree = PrefixTree(BlockPool(4), [False])
    owner = object()
    parent = tree.insert(tree.root("space"), (1, 2), owner)
    child = tree.insert(parent, (3, 4), owner)
    expected = next_key(next_key(root_key("space"), (1, 2)), (3, 4))
    assert node_key(child) == expected == child.content_key
    assert node_key(parent) == next_key(root_key("space"), (1, 2))


def test_token_ids_may_exceed_32_bits():
    assert next_key(root_key(()), (2**40,)) != next_key(root_key(()), (2**40 + 1,)) != next_key(root_key(()), (2**40 - 2**32,))
