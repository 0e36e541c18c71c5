"""What the KV memory holds, what a chat computes again, what a shortage and the checks cost.

Usage: python benchmarks/memory.py [--model NAME] [--only held,waste,chat,hog,check] [--output FILE]

- held: conversations of mean length 512 (at most 8,192) that 256 MiB of KV hold at once, for each way of handing it out. Accounting
  with the engine's own managers, no model: the same on every machine.
- chat: 20 turns of one conversation; prompt tokens that each turn computes although an earlier turn had them.
- waste: slots of held blocks that hold a token, over the decode steps of W64; accounting only, as held.
- hog: output tokens per second, and the physical memory of the KV pool, before, while and after another process takes memory until
  less than the reserve is available. Answers are compared with those of a quiet machine, bit by bit.
- check: the time that `kv_check="sample"` and `"all"` take of a step.

Prints tables, and one line of JSON last.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams
from octavo.config import DEFAULT_MODEL
from octavo.kernels.kv_layout import KVLayout
from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup
from octavo.memory.reservation_policies import Policy, reserve_maximum, reserve_power_of_two
from octavo.memory.reserving_manager import ReservingManager
from octavo.planner.host_memory import read_host_memory
from offline import parameters, prompts
from reporting import save
from workloads import log_normal_lengths, many_requests, one_request, random_prompts

MIB = 2**20
HELD_BYTES, MEAN_TOKENS, MAX_TOKENS, SYSTEM_TOKENS = 256 * MIB, 512, 8192, 256
BLOCK_SIZE = 16
GROUPS = (LayerGroup(tuple(range(30)), None),)  # SmolLM2-135M's 30 layers, 3 KV heads of 64
NUM_DRAWS = 20
NUM_TURNS, USER_TOKENS, ANSWER_TOKENS = 20, 30, 20
HOG_BYTES, HOG_MARGIN_BYTES = 2560 * MIB, 1536 * MIB  # what the hog takes, and what may be taken before the reserve is touched
HOG_PROGRAM = "import sys; held = bytearray(b'x') * int(sys.argv[1]); print('holding', flush=True); sys.stdin.read()"


# ---- conversations held


def num_blocks(kv_dtype: str) -> int:
    """Returns the blocks of `HELD_BYTES`."""
    return HELD_BYTES // KVLayout(kv_dtype, BLOCK_SIZE, 30, 3, 64).block_bytes


def count_held(kv: KVManager, lengths: list[int], num_shared: int) -> int:
    """Returns how many conversations of these lengths fit; each begins with ``num_shared`` common tokens."""
    for number, length in enumerate(lengths):
        tokens = [*range(num_shared), *(1_000_000 * (number + 1) + place for place in range(length - num_shared))]
        cache = kv.open(tokens, (), kv.match(tokens))
        if not kv.allocate(cache, length):
            return number
        kv.commit(cache, tokens, length)
    raise AssertionError("all conversations fit")


def reserving(policy: Policy, lengths: list[int]) -> KVManager:
    """Returns a memory that reserves by ``policy`` for conversations that come in this order and begin with half their tokens."""
    by_first = {1_000_000 * (number + 1): length for number, length in enumerate(lengths)}
    return ReservingManager(
        num_blocks=num_blocks("bf16"),
        block_size=BLOCK_SIZE,
        groups=GROUPS,
        policy=lambda _prompt, final, longest: policy(final // 2, final, longest),
        final_length=lambda tokens: by_first[tokens[0]],
        max_model_len=MAX_TOKENS,
    )


def paged(kv_dtype: str = "bf16") -> KVManager:
    return KVManager(num_blocks=num_blocks(kv_dtype), block_size=BLOCK_SIZE, groups=GROUPS)


def measure_held() -> dict[str, Any]:
    """Returns the median number of conversations over `NUM_DRAWS` draws of lengths."""
    ways: dict[str, Callable[[list[int]], int]] = {
        "contiguous, maximum": lambda lengths: count_held(reserving(reserve_maximum, lengths), lengths, 0),
        "contiguous, power of two": lambda lengths: count_held(reserving(reserve_power_of_two, lengths), lengths, 0),
        "paged": lambda lengths: count_held(paged(), lengths, 0),
        "paged, shared system prompt": lambda lengths: count_held(paged(), lengths, SYSTEM_TOKENS),
        "paged, shared system prompt, int8": lambda lengths: count_held(paged("int8"), lengths, SYSTEM_TOKENS),
    }
    draws = [
        log_normal_lengths(400, mean=MEAN_TOKENS, low=SYSTEM_TOKENS + 1, high=MAX_TOKENS, seed=seed) for seed in range(NUM_DRAWS)
    ]
    held = {name: statistics.median(map(count, draws)) for name, count in ways.items()}
    print(f"conversations of {statistics.mean(map(statistics.mean, draws)):.0f} tokens in {HELD_BYTES // MIB} MiB")
    for name, count in held.items():
        print(f"  {name:36} {count:6.0f}")
    return held


# ---- turns of a chat


def measure_chat(llm: LLM) -> dict[str, Any]:
    """Returns, for each turn, the tokens that had been computed in an earlier turn and are computed again."""
    history: list[int] = []
    num_known, again = 0, []
    for said in random_prompts([USER_TOKENS] * NUM_TURNS, vocab_size=llm.engine.vocab_size):
        history += said
        params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
        (output,) = llm.generate({"prompt_token_ids": history}, params)
        again.append(max(0, num_known - output.num_prefix_hit_tokens))
        history += output.outputs[0].token_ids
        num_known = len(history) - 1  # the last token of an answer has not been through the model
    print(f"tokens computed again per turn: {again} (of {len(history)} at the end)")
    return {"tokens_computed_again": again, "tokens_at_the_end": len(history)}


# ---- waste


def measure_waste() -> dict[str, Any]:
    """Returns the share of held slots that hold a token while W64 decodes, and what half an empty block each would give."""
    workload = many_requests(vocab_size=49_152)
    kv = KVManager(num_blocks=4096, block_size=BLOCK_SIZE, groups=GROUPS)
    running = []
    for prompt, num_new in zip(workload.prompts, workload.output_tokens, strict=True):
        cache = kv.open(prompt, (), kv.match(prompt))
        assert kv.allocate(cache, len(prompt))
        kv.commit(cache, prompt, len(prompt))
        running.append((cache, prompt + [1] * num_new))
    computed = allocated = num_held = 0
    while running:
        memory = kv.stats()
        computed += memory.num_computed_slots
        allocated += memory.num_allocated_slots
        num_held += len(running)
        for cache, tokens in list(running):
            num_tokens = cache.num_computed_tokens + 1
            assert kv.allocate(cache, num_tokens)
            kv.commit(cache, tokens, num_tokens)
            if num_tokens == len(tokens):
                kv.free(cache, tokens)
                running.remove((cache, tokens))
    half_blocks = computed / (computed + num_held * (BLOCK_SIZE - 1) / 2)
    print(f"slots of held blocks that hold a token: {computed / allocated:.2%} (half a block short each: {half_blocks:.2%})")
    return {"used_slots_ratio": computed / allocated, "half_block_ratio": half_blocks}


# ---- a hog


@contextmanager
def hog(num_bytes: int) -> Iterator[None]:
    """Lets another process hold memory."""
    command = [sys.executable, "-c", HOG_PROGRAM, str(num_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()


def serve_round(llm: LLM, round_prompts: list[list[int]]) -> tuple[list[list[int]], float]:
    """Returns the answers to some prompts, and output tokens per second."""
    started = time.perf_counter()
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in round_prompts], params)
    answers = [output.outputs[0].token_ids for output in outputs]
    return answers, sum(map(len, answers)) / (time.perf_counter() - started)


def measure_hog(model: str) -> dict[str, Any]:
    """Returns rates and physical memory before, during and after a hog."""
    reserve = max(0, read_host_memory().allocatable_bytes - HOG_MARGIN_BYTES)
    llm = LLM(model, memory_reserve=reserve, kv_memory="512MiB")
    drawn = random_prompts([80] * 24, vocab_size=llm.engine.vocab_size)
    rounds = [drawn[:12], drawn[12:]]
    expected = [serve_round(llm, each)[0] for each in rounds]
    figures: dict[str, Any] = {}

    def phase(name: str) -> None:
        results = [serve_round(llm, each) for each in rounds]
        assert [answers for answers, _ in results] == expected, "a shortage of memory changed an answer"
        stats = llm.stats()
        figures[name] = {
            "tokens_per_s": statistics.mean(rate for _, rate in results),
            "kv_committed_mib": stats.memory.num_committed_blocks * stats.kv_block_bytes / MIB,
            "kv_blocks": stats.memory.num_blocks,
            "actions": dict(stats.guard.actions),
        }
        print(f"  {name:8} {figures[name]}", flush=True)

    phase("before")
    with hog(HOG_BYTES):
        phase("during")
    time.sleep(1)
    for _ in range(4):  # memory has to be enough for a while
        serve_round(llm, rounds[0])
        time.sleep(2)
    phase("after")
    return figures


# ---- checks


def measure_check(model: str) -> dict[str, Any]:
    """Returns the share of all steps' time that the checks take: their own time against the steps', in the same run."""
    shares = {}
    for kv_check in ("sample", "all"):
        llm = LLM(model, kv_memory="512MiB", kv_check=kv_check)
        for make in (one_request, many_requests):
            workload = make(llm.engine.vocab_size)
            seconds = time_checks(llm.engine._runner.kv_check)
            before = llm.stats().execute_seconds
            llm.generate(prompts(workload), parameters(workload))
            shares[f"{kv_check}, {workload.name}"] = sum(seconds) / (llm.stats().execute_seconds - before - sum(seconds))
            llm.engine.reset_prefix_cache()
    for name, share in shares.items():
        print(f"  {name:14} {share:.2%} of a step")
    return shares


def time_checks(check: Any) -> list[float]:
    """Wraps the check's three parts so that their times are collected, and returns where."""
    seconds: list[float] = []

    def timed(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            started = time.perf_counter()
            function(*arguments)
            seconds.append(time.perf_counter() - started)

        return call

    for name in ("before_copies", "before_forward", "after_forward"):
        setattr(check, name, timed(getattr(type(check), name).__get__(check)))
    return seconds


def main() -> None:
    """Measures, prints the tables and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--only", default="held,waste,chat,hog,check")
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    arguments = parser.parse_args()
    measurements: dict[str, Callable[[], Any]] = {
        "held": measure_held,
        "waste": measure_waste,
        "chat": lambda: measure_chat(LLM(arguments.model, kv_memory="256MiB")),
        "hog": lambda: measure_hog(arguments.model),
        "check": lambda: measure_check(arguments.model),
    }
    figures = {name: measurements[name]() for name in arguments.only.split(",")}
    save("memory", {"model": arguments.model, "figures": figures}, arguments.output)


if __name__ == "__main__":
    main()
