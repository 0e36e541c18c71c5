"""Random workloads against the brute-force model of slots."""

import random

import pytest

from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup, group_layers
from unit.memory_oracle import MemoryOracle

FULL = group_layers([None])
MIXED = (LayerGroup((0, 1), 5), LayerGroup((2, 3), None), LayerGroup((4,), 9))
WINDOWED = (LayerGroup((0,), 6),)
NARROW = (LayerGroup((0,), 1), LayerGroup((1,), 2))


def random_prompt(rng: random.Random, block_size: int) -> list[int]:
    """Few distinct tokens and a few fixed stems, so that prefixes collide often."""
    stem = [[], [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 2, 2], [2, 1] * 9][rng.randrange(4)]
    length = rng.randrange(0, 3 * block_size + 2)
    prompt = stem[: rng.randrange(len(stem) + 1)] + [rng.randrange(1, 4) for _ in range(length)]
    return prompt or [1]


def one_step(rng: random.Random, oracle: MemoryOracle) -> None:
    """What a scheduler may do in one step, and then the step itself."""
    size = oracle.manager.block_size
    for _ in range(rng.randrange(3)):
        oracle.open(random_prompt(rng, size), rng.choice(["a", "b"]), reuse=rng.random() < 0.9)
    for sequence in list(oracle.sequences):
        action = rng.random()
        if action < 0.08:
            oracle.free(sequence)
        elif action < 0.14 and len(oracle.sequences) < 12:
            oracle.fork(sequence)
        elif action < 0.85:
            while len(sequence.token_ids) <= sequence.cache.num_computed_tokens:
                sequence.token_ids.append(rng.randrange(1, 4))
            if not oracle.schedule(sequence, rng.randrange(1, 2 * size)) and rng.random() < 0.5:
                oracle.free(sequence)
    while len(oracle.sequences) > 12:
        oracle.free(rng.choice(oracle.sequences))
    if rng.random() < 0.9:  # else the schedule was empty: nothing is drained
        oracle.run_step()


@pytest.mark.parametrize("groups", [FULL, MIXED, WINDOWED, NARROW], ids=["full", "mixed", "windowed", "narrow"])
@pytest.mark.parametrize("enable_prefix_caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_random_steps_never_show_foreign_content(groups, enable_prefix_caching, block_size):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    manager = KVManager(
        num_blocks=40 * len(groups), block_size=block_size, groups=groups, enable_prefix_caching=enable_prefix_caching
    )
    oracle = MemoryOracle(manager)
    for _ in range(200):
        one_step(rng, oracle)
        oracle.check()
        if rng.random() < 0.02:
            manager.resize(rng.randrange(4, 48 * len(groups)))
        if rng.random() < 0.01:
            manager.reset_prefix_cache()
    for sequence in list(oracle.sequences):
        oracle.free(sequence)
    oracle.check()
