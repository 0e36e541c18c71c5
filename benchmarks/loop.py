"""What a step costs beside the model: scheduling, KV accounting, arrays, sampling, detokenising, by part.

Usage: python benchmarks/loop.py [--model NAME] [--output FILE]

The engine is real, with the tokenizer of a real model; the kernels are stand-ins that return at once, so that what is left is
Python. Sequences decode together, greedily, from prompts of staggered lengths. Times are processor time of this thread, medians
over the steps, in milliseconds per step: other processes disturb them little. The books are checked before and after.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from memory_accounting import BLOCK_SIZE, DECODE_STEPS, LAYOUTS
from octavo import SamplingParams
from octavo.config import DEFAULT_MODEL
from octavo.engine.engine import Engine
from octavo.engine.loading import read_spec
from octavo.engine.model_text import ModelText
from octavo.engine.validation import RequestChecker
from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.step_arrays import StepArrays
from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import group_layers
from octavo.models.model_files import ModelFiles, load_model_files
from octavo.runner.batch_arrays import BatchArrays
from octavo.runner.kv_storage import KVStorage
from octavo.runner.model_runner import ModelRunner
from octavo.scheduler.scheduler import Scheduler, SchedulerLimits
from reporting import add_output_argument, save

MAX_MODEL_LEN = 8192
CASES = [(1, 512), (64, 512), (256, 512), (512, 512), (64, 7936)]  # (sequences, prompt tokens)
TARGETS_MS = {(64, 512): 0.4, (512, 512): 2.0}


class FreeKernels:
    """Kernels that compute nothing, and draw a token that depends on the position."""

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size

    def logits(self, hidden: Any, rows: Any, norm_weight: Any, head: Any, out: Any, *, eps: float, soft_cap: float) -> None:
        """Leaves ``out`` as it is."""

    def sample(self, logits: Any, rows: np.ndarray, parameters: np.ndarray, keys: np.ndarray, out: np.ndarray) -> None:
        """Draws printable tokens, each position another."""
        out[:] = 1000 + keys[:, 2] % (self._vocab_size - 1000)

    def run(self, sizes: Any) -> None:
        """Stands for the forward pass."""


class Stopwatch:
    """Processor time of named parts of one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def watch(self, owner: Any, method: str, part: str) -> None:
        """Counts the time of an object's method under ``part``."""
        setattr(owner, method, self.timed(getattr(owner, method), part))

    def timed(self, function: Callable, part: str) -> Callable:
        """Returns the function, counted."""

        def run(*arguments: Any) -> Any:
            started = time.thread_time()
            result = function(*arguments)
            self.seconds[part] += time.thread_time() - started
            return result

        return run


def build(files: ModelFiles, windows: list[int | None], num_seqs: int, max_step_tokens: int, watch: Stopwatch) -> Engine:
    """Returns an engine whose parts are watched and whose kernels are free."""
    groups = group_layers(windows)
    max_blocks = MAX_MODEL_LEN // BLOCK_SIZE
    num_blocks = len(groups) * num_seqs * max_blocks
    spec, kernels = read_spec(files), FreeKernels(files.tokenizer.vocab_size)
    kv = KVManager(num_blocks=num_blocks, block_size=BLOCK_SIZE, groups=groups)
    scheduler = Scheduler(kv, SchedulerLimits(num_seqs, max_step_tokens))
    step = StepArrays.allocate(max_tokens=max_step_tokens, max_seqs=num_seqs, num_groups=len(groups), max_blocks_per_seq=max_blocks)
    arrays = BatchArrays(step, BLOCK_SIZE)
    weights, buffers = SimpleNamespace(final_norm=None, head=None), SimpleNamespace(hidden=None)
    storage = KVStorage(KVLayout("bf16", BLOCK_SIZE, 1, 1, 16), num_blocks)
    runner = ModelRunner(kernels, spec, weights, storage, arrays, buffers, kernels)
    watch.watch(scheduler, "schedule", "schedule")
    watch.watch(scheduler, "update", "commit")
    watch.watch(arrays, "fill", "arrays")
    watch.watch(runner, "execute", "execute")
    return Engine(
        text=ModelText("stand-in", files.tokenizer),
        scheduler=scheduler,
        runner=runner,
        checker=RequestChecker(files.tokenizer, spec.vocab_size, MAX_MODEL_LEN, frozenset()),
        seed=1,
    )


def time_steps(files: ModelFiles, windows: list[int | None], num_seqs: int, num_prompt_tokens: int) -> dict[str, float]:
    """Returns the milliseconds per step of each part while ``num_seqs`` sequences decode."""
    watch = Stopwatch()
    engine = build(files, windows, num_seqs, num_seqs * num_prompt_tokens, watch)
    params = SamplingParams(temperature=0.0, max_tokens=DECODE_STEPS + 2)
    for first in range(num_seqs):  # staggered, so that about one sequence in sixteen takes a new block in a step
        engine.add_request([first, *range(num_prompt_tokens - first % BLOCK_SIZE - 1)], params)
    engine.step()  # all prompts
    engine.check_invariants()
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(DECODE_STEPS):
        watch.seconds.clear()
        started = time.thread_time()
        deltas = engine.step()
        parts = dict(watch.seconds, total=time.thread_time() - started)
        assert len(deltas) == num_seqs, "every sequence gets its token in every step"
        for name, seconds in named_parts(parts).items():
            times[name].append(1e3 * seconds)
    engine.check_invariants()
    return {name: statistics.median(values) for name, values in times.items()} | {"total, mean": statistics.mean(times["total"])}


def named_parts(seconds: dict[str, float]) -> dict[str, float]:
    """Returns the watched times as parts that add up to the total."""
    return {
        "schedule": seconds["schedule"],
        "arrays": seconds["arrays"],
        "sampling": seconds["execute"] - seconds["arrays"],
        "commit": seconds["commit"],
        "answers": seconds["total"] - seconds["schedule"] - seconds["execute"] - seconds["commit"],
        "total": seconds["total"],
    }


def main() -> None:
    """Measures every case, prints a table, saves the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    add_output_argument(parser)
    arguments = parser.parse_args()
    files = load_model_files(arguments.model)
    rows = []
    for layout, windows in LAYOUTS.items():
        print(f"{layout} ({len(group_layers(windows))} layer groups), ms per step")
        for case in CASES:
            parts = time_steps(files, windows, *case)
            rows.append({"layout": layout, "sequences": case[0], "context": case[1], "target_ms": TARGETS_MS.get(case), **parts})
            print(f"  {case[0]:4} of {case[1]:5} tokens  " + "  ".join(f"{name} {value:.3f}" for name, value in parts.items()))
    save("loop", {"rows": rows}, arguments.output)


if __name__ == "__main__":
    main()
