"""Random workloads against the brute-force model of slots."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup, group_layers
from unit.memory_oracle import MemoryOracle

GROUPS = {
    "full": group_layers([None]),
    "mixed": (LayerGroup((0, 1), 5), LayerGroup((2, 3), None), LayerGroup((4,), 9)),
    "windowed": (LayerGroup((0,), 6),),
    "narrow": (LayerGroup((0,), 1), LayerGroup((1,), 2)),
}
STEMS = [[], [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 2, 2], [2, 1] * 9]


def random_prompt(rng: random.Random, block_size: int) -> list[int]:
    """Few distinct tokens and a few fixed stems, so that prefixes collide often."""
    stem = rng.choice(STEMS)
    length = rng.randrange(3 * block_size + 2)
    return (stem[: rng.randrange(len(stem) + 1)] + [rng.randrange(1, 4) for _ in range(length)]) or [1]


def extend(rng: random.Random, token_ids: list[int], num_computed_tokens: int) -> None:
    while len(token_ids) <= num_computed_tokens:
        token_ids.append(rng.randrange(1, 4))


def random_step(rng: random.Random, oracle: MemoryOracle, max_sequences: int) -> None:
    """What a scheduler may do in one step, and then the step itself."""
    size = oracle.manager.block_size
    for _ in range(rng.randrange(3)):
        oracle.open(random_prompt(rng, size), rng.choice(["a", "b"]), reuse=rng.random() < 0.9)
    for sequence in list(oracle.sequences):
        action = rng.random()
        if action < 0.08:
            oracle.free(sequence)
        elif action < 0.14:
            oracle.fork(sequence)
        elif action < 0.85:
            extend(rng, sequence.token_ids, sequence.cache.num_computed_tokens)
            if not oracle.schedule(sequence, rng.randrange(1, 2 * size + 1)) and rng.random() < 0.5:
                oracle.free(sequence)
    while len(oracle.sequences) > max_sequences:
        oracle.free(rng.choice(oracle.sequences))
    if rng.random() < 0.9:  # else nothing was scheduled, and nobody drains the copies
        oracle.run_step()
    if oracle.held and rng.random() < 0.3:
        oracle.let_go(rng.choice(oracle.held))
    if oracle.sequences and not oracle.scheduled and rng.random() < 0.1:
        sequence = rng.choice(oracle.sequences)
        oracle.hold(sequence.token_ids[: rng.randrange(len(sequence.token_ids) + 1)], sequence.namespace)


def run_random_steps(manager: KVManager, *, num_steps: int, max_sequences: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    oracle = MemoryOracle(manager)
    num_blocks = manager.capacity
    for _ in range(num_steps):
        random_step(rng, oracle, max_sequences)
        oracle.check()
        if rng.random() < 0.02:
            manager.resize(rng.randrange(1, num_blocks * 5 // 4))
        if rng.random() < 0.01:
            oracle.reset()
    for sequence in list(oracle.sequences):
        oracle.free(sequence)
    for held in list(oracle.held):
        oracle.let_go(held)
    oracle.check()
    assert manager.stats().num_computed_slots == 0


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize(("block_size", "caching"), [(1, True), (4, True), (4, False), (16, True)])
def test_random_steps_never_show_foreign_content(groups, block_size, caching):
    num_blocks = 24 * len(groups)
    manager = KVManager(num_blocks=num_blocks, block_size=block_size, groups=groups, enable_prefix_caching=caching)
    run_random_steps(manager, num_steps=100, max_sequences=10)


def test_ten_thousand_steps_in_a_small_pool():
    run_random_steps(KVManager(num_blocks=10, block_size=4, groups=GROUPS["full"]), num_steps=10_000, max_sequences=3)


def common_length(left, right) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_without_eviction_a_match_reaches_every_token_of_every_ended_sequence():
    rng = random.Random(11)
    manager = KVManager(num_blocks=2000, block_size=4, groups=GROUPS["full"])
    oracle = MemoryOracle(manager)
    ended: list[list[int]] = []
    for _ in range(250):
        prompt = random_prompt(rng, 4)
        expected = min(max((common_length(prompt, other) for other in ended), default=0), len(prompt) - 1)
        match = manager.match(prompt)
        assert match.num_tokens == expected and match.num_pending_tokens == 0
        sequence = oracle.open_with(prompt, (), match)
        assert sequence.cache.num_hit_tokens == expected
        while sequence.cache.num_computed_tokens < len(prompt):
            assert oracle.schedule(sequence, rng.randrange(1, 9))
            oracle.run_step()
        oracle.free(sequence)
        ended.append(prompt)
    oracle.check()


class MemoryMachine(RuleBasedStateMachine):
    """Every order of operations that a scheduler could come up with, in a tiny memory."""

    @initialize(name=st.sampled_from(sorted(GROUPS)), num_blocks=st.integers(4, 20), block_size=st.integers(1, 4))
    def start(self, name, num_blocks, block_size):
        self.oracle = MemoryOracle(KVManager(num_blocks=num_blocks, block_size=block_size, groups=GROUPS[name]))

    @precondition(lambda self: len(self.oracle.sequences) < 5)
    @rule(token_ids=st.lists(st.integers(1, 2), min_size=1, max_size=9), reuse=st.booleans())
    def open(self, token_ids, reuse):
        self.oracle.open(token_ids, (), reuse=reuse)

    @precondition(lambda self: self.oracle.sequences)
    @rule(data=st.data(), num_tokens=st.integers(1, 9), token_id=st.integers(1, 2))
    def schedule(self, data, num_tokens, token_id):
        sequence = data.draw(st.sampled_from(self.oracle.sequences))
        if len(sequence.token_ids) == sequence.cache.num_computed_tokens:
            sequence.token_ids.append(token_id)
        self.oracle.schedule(sequence, num_tokens)

    @precondition(lambda self: self.oracle.sequences)
    @rule(data=st.data())
    def free(self, data):
        self.oracle.free(data.draw(st.sampled_from(self.oracle.sequences)))

    @precondition(lambda self: 0 < len(self.oracle.sequences) < 5)
    @rule(data=st.data())
    def fork(self, data):
        self.oracle.fork(data.draw(st.sampled_from(self.oracle.sequences)))

    @precondition(lambda self: self.oracle.sequences and not self.oracle.scheduled and len(self.oracle.held) < 2)
    @rule(data=st.data())
    def hold(self, data):
        sequence = data.draw(st.sampled_from(self.oracle.sequences))
        self.oracle.hold(sequence.token_ids[: sequence.cache.num_computed_tokens], ())

    @precondition(lambda self: self.oracle.held)
    @rule()
    def let_go(self):
        self.oracle.let_go(self.oracle.held[0])

    @rule()
    def run_step(self):
        self.oracle.run_step()

    @rule(num_blocks=st.integers(0, 24))
    def resize(self, num_blocks):
        reached = self.oracle.manager.resize(num_blocks)
        assert reached == self.oracle.manager.capacity >= num_blocks

    @rule()
    def reset(self):
        self.oracle.reset()

    @invariant()
    def holds_together(self):
        if hasattr(self, "oracle"):
            self.oracle.check()


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
