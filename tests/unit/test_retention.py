"""What is kept in the cache for longer: priorities and their end, pins, quotas."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.memory.block_pool import DEFAULT_PRIORITY
from octavo.memory.claims import Retention
from octavo.memory.eviction_order import EvictionOrder
from octavo.memory.layer_groups import group_layers
from octavo.memory.prefix_tree import PrefixNode
from unit.memory_oracle import FULL, make
from unit.memory_oracle import run as run_tokens

BLOCK = 4


def tokens_of(prefix, num_whole_blocks):
    """Whole blocks and one token more."""
    return [1000 * (prefix + 1) + index for index in range(BLOCK * num_whole_blocks + 1)]


def keep(oracle, token_ids, *retentions, namespace=()):
    """Computes and frees a sequence that asks for retention."""
    sequence = oracle.open(token_ids, namespace)
    sequence.cache.retentions = retentions
    while sequence.cache.num_computed_tokens < len(token_ids):
        assert oracle.schedule(sequence, 1000)
        oracle.run_step()
    oracle.free(sequence)
    oracle.check()


def num_hit(oracle, token_ids, namespace=()):
    return oracle.manager.match(token_ids, namespace).num_tokens


class OrderModel:
    """The order of eviction, worked out anew from all that happened: for each cached block who used it, and when it moved."""

    def __init__(self):
        self.now = 0.0
        self.uses = defaultdict(list)  # (prefix, block) -> [(freed at, retentions, blocks of the use)]
        self.moved = {}  # (prefix, block) -> number of its last move; exactly the cached blocks
        self.num_moves = 0

    def priority(self, block, now):
        index = block[1]
        asked, is_plain = [], False
        for freed_at, retentions, num_blocks, num_tokens in self.uses[block]:
            for deeper in range(index, num_blocks):
                own = [
                    retention
                    for retention in retentions
                    if retention.start < (deeper + 1) * BLOCK
                    and deeper * BLOCK < (num_tokens if retention.end is None else retention.end)
                ]
                is_plain = is_plain or not own
                asked += [r.priority for r in own if r.ttl_s is None or freed_at + r.ttl_s > now]
        if is_plain:
            asked.append(DEFAULT_PRIORITY)
        return max(asked, default=DEFAULT_PRIORITY)

    def move(self, block):
        self.num_moves += 1
        self.moved[block] = self.num_moves

    def reprioritise(self, change):
        """Blocks whose priority a change alters become the last of their new one, the deepest first."""
        before = {block: self.priority(block, self.now) for block in self.moved}
        change()
        for block in sorted(before, key=lambda block: -block[1]):
            if self.priority(block, self.now) != before[block]:
                self.move(block)

    def run(self, prefix, num_whole, retentions):
        blocks = [(prefix, index) for index in range(num_whole + 1)]
        tail_was_cached = blocks[-1] in self.moved
        use = (self.now, retentions, num_whole + 1, num_whole * BLOCK + 1)

        def note():
            for block in blocks:
                self.uses[block].append(use)

        self.reprioritise(note)
        for block in reversed(blocks[:-1] if tail_was_cached else blocks):
            self.move(block)

    def pass_time(self, seconds):
        end = self.now + seconds
        times = {f + r.ttl_s for uses in self.uses.values() for f, rs, *_ in uses for r in rs if r.ttl_s is not None}
        for time in sorted(time for time in times if self.now < time <= end):
            self.reprioritise(lambda time=time: setattr(self, "now", time))
        self.now = end

    def evict(self, num_blocks):
        for _ in range(num_blocks):
            if not self.moved:
                return
            prefix, index = self.order()[0]
            for block in [block for block in self.moved if block[0] == prefix and block[1] >= index]:
                del self.moved[block], self.uses[block]

    def order(self):
        return sorted(self.moved, key=lambda block: (self.priority(block, self.now), self.moved[block]))


def cached_order(oracle):
    """Returns the cached blocks as (prefix, block), the next to be evicted first."""
    order = []
    for block_id in oracle.manager._pool.cached_ids():
        node = oracle.manager._pool.contents[block_id]
        assert isinstance(node, PrefixNode)
        prefix, first = divmod(node.token_ids[0], 1000)
        order.append((prefix - 1, first // BLOCK))
    return order


retention = st.builds(
    Retention,
    priority=st.sampled_from([0, 10, 50, 80, 100]),
    ttl_s=st.sampled_from([None, 1.0, 2.0, 5.0]),
    start=st.sampled_from([0, 3, 6]),
    end=st.sampled_from([None, 4, 7, 9]),
)
operation = st.one_of(
    st.tuples(st.just("run"), st.integers(0, 3), st.lists(retention, max_size=2)),
    st.tuples(st.just("time"), st.sampled_from([0.5, 1.0, 3.0]), st.none()),
    st.tuples(st.just("evict"), st.integers(1, 2), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(operation, max_size=14))
def test_blocks_go_in_the_order_of_a_simple_model(operations):
    oracle, model = make(num_blocks=40), OrderModel()
    for kind, value, retentions in operations:
        if kind == "run":
            keep(oracle, tokens_of(value, value), *retentions)
            model.run(value, value, tuple(retentions))
        elif kind == "time":
            model.pass_time(value)
            oracle.manager.retention.set_time(model.now)
        else:
            for _ in range(value):  # one eviction at a time: it may take a whole branch
                if oracle.manager._pool.num_cached:
                    oracle.manager._supply.evict(oracle.manager._pool.oldest_cached())
            model.evict(value)
        oracle.check()
        assert cached_order(oracle) == model.order()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 9), st.integers(0, 3)), max_size=40))
def test_the_order_is_a_sorted_list(operations):
    order, listed = EvictionOrder(), []
    for kind, block_id, priority in operations:
        present = [entry for entry in listed if entry[1] == block_id]
        if kind == "add" and not present:
            order.add(block_id, priority)
            listed.append((priority, block_id))
        elif kind == "remove" and present:
            order.remove(block_id)
            listed.remove(present[0])
        listed.sort(key=lambda entry: entry[0])
        assert list(order) == [block_id for _, block_id in listed]
        assert len(order) == len(listed)
        if listed:
            assert order.first() == listed[0][1]


def test_a_claim_on_a_range_keeps_what_comes_before_it():
    oracle = make(num_blocks=20)
    keep(oracle, tokens_of(0, 4), Retention(80, start=8, end=12))
    for other in range(1, 9):
        keep(oracle, tokens_of(other, 3))
    assert num_hit(oracle, [*tokens_of(0, 4), 1]) == 12


def test_of_equal_prefixes_in_windowed_groups_only_the_window_is_claimed():
    oracle = make(num_blocks=40, groups=group_layers([None, 6]))
    keep(oracle, tokens_of(0, 6), Retention(90))
    pool = oracle.manager._pool
    priorities = defaultdict(list)
    for block_id in pool.cached_ids():
        node = pool.contents[block_id]
        priorities[node.block_ids.index(block_id)].append(pool._priorities[block_id])
    assert priorities[0] == [90] * 7
    assert sorted(priorities[1]) == [50] * 5 + [90] * 2  # the query at 25 sees from 20 on
    for other in range(1, 9):
        keep(oracle, tokens_of(other, 3))
    assert num_hit(oracle, [*tokens_of(0, 6), 1]) == 25


# ---- pins


def pin(oracle, token_ids, *, max_blocks=8, ttl_s=None, pin_id="a"):
    return oracle.manager.retention.pin(pin_id, (), token_ids, ttl_s=ttl_s, max_blocks=max_blocks)


def test_a_pin_outlives_everything_else_until_its_end():
    oracle = make(num_blocks=12)
    keep(oracle, tokens_of(0, 3))
    made = pin(oracle, tokens_of(0, 3), ttl_s=10.0)
    assert (made.num_cached_tokens, oracle.manager.retention.num_pinned_blocks) == (13, 4)
    for other in range(1, 6):
        keep(oracle, tokens_of(other, 3), Retention(100))
    assert num_hit(oracle, [*tokens_of(0, 3), 1]) == 13
    oracle.manager.retention.set_time(10.0)
    assert not oracle.manager.retention.pins
    for other in range(1, 6):
        keep(oracle, tokens_of(other, 3), Retention(100))
    assert num_hit(oracle, [*tokens_of(0, 3), 1]) == 0


def test_what_is_pinned_is_handed_out_when_nothing_else_is_left():
    oracle = make(num_blocks=6)
    keep(oracle, tokens_of(0, 3))
    made = pin(oracle, tokens_of(0, 3))
    assert oracle.manager.num_free_blocks == 6
    keep(oracle, list(range(24)))  # the whole pool
    assert made.num_cached_tokens == 0
    assert oracle.manager.retention.num_pinned_blocks == 0


def test_pins_stay_within_their_share_and_a_refused_one_changes_nothing():
    oracle = make(num_blocks=20)
    for prefix in range(3):
        keep(oracle, tokens_of(prefix, 3))
    assert pin(oracle, tokens_of(0, 3), max_blocks=6)
    before = cached_order(oracle)
    assert pin(oracle, tokens_of(1, 3), max_blocks=6, pin_id="b") is None
    assert cached_order(oracle) == before
    assert pin(oracle, tokens_of(1, 1), max_blocks=6, pin_id="b")
    assert pin(oracle, tokens_of(0, 3), max_blocks=6)  # the same again needs no further room
    assert oracle.manager.retention.num_pinned_blocks == 6


def test_a_released_pin_counts_as_any_other_prefix():
    oracle = make(num_blocks=12)
    keep(oracle, tokens_of(0, 3), Retention(70))
    pin(oracle, tokens_of(0, 3))
    assert oracle.manager.retention.unpin("a")
    assert not oracle.manager.retention.unpin("a")
    assert {oracle.manager._pool._priorities[block_id] for block_id in oracle.manager._pool.cached_ids()} == {70}


# ---- quotas


@pytest.mark.parametrize("percent", [0, 25, 50])
def test_a_tenant_keeps_no_more_than_its_share(percent):
    oracle = make(num_blocks=40, groups=FULL)
    greedy, other = (("salt", "greedy"),), (("salt", "other"),)
    oracle.manager.quotas.set(greedy, percent)
    for prefix in range(3):
        keep(oracle, tokens_of(prefix, 3), namespace=other)
    for prefix in range(30):
        keep(oracle, tokens_of(prefix % 13, 3), Retention(100), namespace=greedy)
        assert oracle.manager._pool.num_cached_of(greedy) <= 40 * percent // 100
    assert [num_hit(oracle, [*tokens_of(prefix, 3), 1], other) for prefix in range(3)] == [13] * 3


def test_a_tenant_s_salts_count_together_and_one_without_limit_takes_what_it_needs():
    oracle = make(num_blocks=40)
    oracle.manager.quotas.set((("tenant", "a"),), 20)
    for prefix in range(6):
        keep(oracle, tokens_of(prefix, 3), namespace=(("tenant", "a"), ("salt", str(prefix))))
    assert oracle.manager._pool.num_cached_of((("tenant", "a"),)) == 8
    oracle.manager.quotas.default_percent = 10
    run_tokens(oracle, tokens_of(0, 5))
    run_tokens(oracle, tokens_of(0, 5), (("salt", "b"),))
    assert oracle.manager._pool.num_cached_of((("salt", "b"),)) == 4
    assert num_hit(oracle, [*tokens_of(0, 5), 1]) == 21


def test_what_a_tenant_s_sequence_holds_is_not_limited():
    oracle = make(num_blocks=10)
    oracle.manager.quotas.set((("salt", "a"),), 10)
    keep(oracle, list(range(40)), namespace=(("salt", "a"),))
    assert oracle.manager._pool.num_cached == 1
