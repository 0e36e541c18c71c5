"""What the memory's bookkeeping costs, without a model: per decode step, and per block over a sequence's life.

Usage: python benchmarks/memory_accounting.py

Times are processor time of this thread, so that other processes disturb them little: medians over many repeats, and the mean
of a decode step as well, since some steps take new blocks. The invariants are checked before anything is timed.
"""

import statistics
import time
from collections.abc import Sequence

from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup, group_layers
from reporting import save

BLOCK_SIZE = 16
PROMPT_TOKENS = 512
DECODE_STEPS = 160  # ten blocks per sequence
LIFE_TOKENS = 2048
LIFE_REPEATS = 100
LAYOUTS = {"30 full layers": [None] * 30, "Gemma 3 270M": ([512] * 5 + [None]) * 3}


def time_decode(groups: Sequence[LayerGroup], num_seqs: int) -> dict[str, float]:
    """Returns microseconds per step of ``allocate`` and ``commit`` for sequences that decode together."""
    kv = KVManager(num_blocks=64 * num_seqs * len(groups), block_size=BLOCK_SIZE, groups=groups)
    sequences = []
    for first in range(num_seqs):
        # Staggered lengths: a step takes new blocks for about one sequence in sixteen, as in a server.
        token_ids = [first, *range(PROMPT_TOKENS + first % BLOCK_SIZE)]
        cache = kv.open(token_ids, (), kv.match(token_ids))
        assert kv.allocate(cache, len(token_ids))
        kv.commit(cache, token_ids, len(token_ids))
        sequences.append((cache, token_ids))
    kv.check_invariants()
    times = []
    for _ in range(DECODE_STEPS):
        for _, token_ids in sequences:
            token_ids.append(7)
        started = time.thread_time()
        for cache, token_ids in sequences:
            kv.allocate(cache, cache.num_computed_tokens + 1)
            kv.commit(cache, token_ids, cache.num_computed_tokens + 1)
        times.append((time.thread_time() - started) * 1e6)
    kv.check_invariants()
    return {"median_us": statistics.median(times), "mean_us": statistics.mean(times)}


def time_life(groups: Sequence[LayerGroup], *, shared: bool) -> dict[str, float]:
    """Returns microseconds per block of a prompt's length for each call of a sequence's life, in a full pool."""
    kv = KVManager(num_blocks=1024 * len(groups), block_size=BLOCK_SIZE, groups=groups)
    times: dict[str, list[float]] = {name: [] for name in ("match", "open", "allocate", "commit", "free")}
    for repeat in range(LIFE_REPEATS):
        token_ids = [0 if shared else repeat, *range(1, LIFE_TOKENS)]
        marks = [time.thread_time()]
        match = kv.match(token_ids)
        marks.append(time.thread_time())
        cache = kv.open(token_ids, (), match)
        marks.append(time.thread_time())
        assert kv.allocate(cache, LIFE_TOKENS)
        marks.append(time.thread_time())
        kv.commit(cache, token_ids, LIFE_TOKENS)
        marks.append(time.thread_time())
        kv.free(cache, token_ids)
        marks.append(time.thread_time())
        kv.drain_copies()
        for name, start, end in zip(times, marks, marks[1:], strict=False):
            times[name].append((end - start) * 1e6 * BLOCK_SIZE / LIFE_TOKENS)
    kv.check_invariants()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    results: dict[str, dict[str, dict[str, float]]] = {}
    for layout, windows in LAYOUTS.items():
        groups = group_layers(windows)
        results[layout] = {
            **{f"decode step, {n} sequences": time_decode(groups, n) for n in (8, 64, 512)},
            "life per block, new prompt": time_life(groups, shared=False),
            "life per block, known prompt": time_life(groups, shared=True),
        }
        print(f"{layout} ({len(groups)} layer groups), microseconds")
        for name, values in results[layout].items():
            print(f"  {name:32}" + "  ".join(f"{key} {value:.2f}" for key, value in values.items()))
    save("memory_accounting", {"block_size": BLOCK_SIZE, "results": results})


if __name__ == "__main__":
    main()
