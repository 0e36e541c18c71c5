"""Under a load as conversations make it, nearly every slot of a held block holds a token, and the figures say so."""

import math
import random

from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup

NUM_SEQUENCES, BLOCK_SIZE = 64, 16


def lengths(source: random.Random, mean: int, low: int, high: int) -> list[int]:
    mu = math.log(mean) - 0.32
    return [min(max(round(source.lognormvariate(mu, 0.8)), low), high) for _ in range(NUM_SEQUENCES)]


def test_97_percent_of_allocated_slots_hold_tokens() -> None:
    source = random.Random(5)
    kv = KVManager(num_blocks=4096, block_size=BLOCK_SIZE, groups=[LayerGroup((0,), None)])
    running = []
    for number, (prompt, answer) in enumerate(zip(lengths(source, 230, 8, 1024), lengths(source, 131, 8, 384), strict=True)):
        tokens = [number + 1] * (prompt + answer)
        cache = kv.open(tokens[:prompt], (), None)
        assert kv.allocate(cache, prompt)
        kv.commit(cache, tokens[:prompt], prompt)
        running.append((cache, tokens))
    allocated = computed = half_blocks = 0
    while running:
        stats = kv.stats()
        allocated += stats.num_allocated_slots
        computed += stats.num_computed_slots
        half_blocks += len(running) * (BLOCK_SIZE - 1) / 2
        assert stats.num_allocated_slots - stats.num_computed_slots < len(running) * BLOCK_SIZE
        for cache, tokens in list(running):
            num_tokens = cache.num_computed_tokens + 1
            assert kv.allocate(cache, num_tokens)
            kv.commit(cache, tokens, num_tokens)
            if num_tokens == len(tokens):
                kv.free(cache, tokens)
                running.remove((cache, tokens))
    assert computed / allocated >= 0.97
    assert abs((allocated - computed) / half_blocks - 1) < 0.1, "what is wasted is half a block for each sequence"
