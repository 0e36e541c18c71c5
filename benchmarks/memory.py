"""What the KV memory holds, what a chat computes again, what a shortage and the checks cost.

Usage: python benchmarks/memory.py [--model NAME] [--only held,waste,chat,hog,check] [--output FILE]

- held: conversations of mean length 512 (at most 8,192) that 256 MiB of KV hold at once, for each way of handing it out. Accounting
  with the engine's own managers, no model: the same on every machine.
- chat: 20 turns of one conversation; prompt tokens that each turn computes although an earlier turn had them.
- waste: slots of held blocks that hold a token, over the decode steps of W64; accounting only, as held.
- hog: output tokens per second and this process's resident memory before, while and after another process takes memory until less
  than the reserve is available: once beside this process, once within a control group that both are in, where one can be made.
  Tokens and log-probabilities of all answers are compared with those before, bit by bit.
- check: what `kv_check` costs: its own time as a share of the steps', and output tokens per second by turns without and with it.

Prints tables, and one line of JSON last. In the file given with --output, figures that were not taken again stay as they are.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from reporting import save, saved_figures
from turns import by_turns, ratios
from workloads import Workload, log_normal_lengths, many_requests, one_request, random_prompts

MIB = 2**20
HELD_BYTES, MEAN_TOKENS, MAX_TOKENS, SYSTEM_TOKENS = 256 * MIB, 512, 8192, 256
BLOCK_SIZE = 16
GROUPS = (LayerGroup(tuple(range(30)), None),)  # SmolLM2-135M's 30 layers, 3 KV heads of 64
NUM_DRAWS = 20
NUM_TURNS, USER_TOKENS, ANSWER_TOKENS = 20, 30, 20
HOG_BYTES, HOG_MARGIN_BYTES = 2560 * MIB, 1536 * MIB  # what the hog takes, and what may be taken before the reserve is touched
GROUP_BYTES = 5120 * MIB  # limit of the control group
GROUPS_V1, GROUPS_V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
HOG_PROMPTS, HOG_PROMPT_TOKENS, HOG_ANSWER_TOKENS = 24, 200, 24
CALM_ROUNDS = 10  # after the hog: admission and the pool come back once memory was enough for a while
CHECK_ROUNDS = {"W1": 20, "16 at once": 6}
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
    """Lets another process hold memory, in the control group that this one is in."""
    command = [sys.executable, "-c", HOG_PROGRAM, str(num_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()


@contextmanager
def control_group(limit_bytes: int) -> Iterator[bool]:
    """Moves this process into a control group with a limit, and out again; False where that is not allowed."""
    for parent, limit_name in ((GROUPS_V1, "memory.limit_in_bytes"), (GROUPS_V2, "memory.max")):
        group = parent / f"octavo-benchmark-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit_name).write_text(str(limit_bytes))
            home = own_group(parent)
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        try:
            yield True
        finally:
            (home / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()
        return
    yield False


def own_group(parent: Path) -> Path:
    """Returns the control group that this process is in."""
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") if parent == GROUPS_V1 else number == "0":
            return parent / path.lstrip("/")
    raise OSError("this process is in no control group for memory")


def resident_mib() -> float:
    """Returns this process's physical memory."""
    return os.sysconf("SC_PAGESIZE") * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) / MIB


def serve_round(llm: LLM, all_prompts: list[list[int]]) -> tuple[list[Any], float]:
    """Returns the answers to some prompts, tokens with their log-probabilities, and output tokens per second."""
    params = SamplingParams(max_tokens=HOG_ANSWER_TOKENS, temperature=0.0, logprobs=0, ignore_eos=True, detokenize=False)
    started = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in all_prompts], params)
    rate = len(all_prompts) * HOG_ANSWER_TOKENS / (time.perf_counter() - started)
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs], rate


def measure_hog(model: str) -> dict[str, Any]:
    """Returns the figures of both hogs; of one alone where no control group can be made."""
    figures = {"beside": run_with_hog(model)}
    with control_group(GROUP_BYTES) as is_inside:
        if is_inside:
            figures["in one control group"] = run_with_hog(model)
    return figures


def run_with_hog(model: str) -> dict[str, Any]:
    """Returns rates and physical memory before, during and after a hog."""
    reserve = max(0, read_host_memory().allocatable_bytes - HOG_MARGIN_BYTES)
    llm = LLM(model, memory_reserve=reserve, kv_memory="512MiB")
    drawn = random_prompts([HOG_PROMPT_TOKENS] * HOG_PROMPTS, vocab_size=llm.engine.vocab_size)
    empty_mib = resident_mib()
    expected = serve_round(llm, drawn)[0]
    figures: dict[str, Any] = {}

    def phase(name: str) -> None:
        answers, rate = serve_round(llm, drawn)
        assert answers == expected, "a shortage of memory changed an answer"
        stats = llm.stats()
        figures[name] = {
            "tokens_per_s": rate,
            "resident_mib": resident_mib() - empty_mib,
            "kv_blocks": stats.memory.num_blocks,
            "actions": dict(stats.guard.actions),
        }
        print(f"  {name:8} {figures[name]}", flush=True)

    phase("before")
    with hog(HOG_BYTES):
        phase("during")
    for _ in range(CALM_ROUNDS):
        time.sleep(1)
        serve_round(llm, drawn[:1])
    serve_round(llm, drawn)  # as before the first phase: the prompts are cached again
    phase("after")
    return figures


# ---- checks


def measure_check(model: str) -> dict[str, Any]:
    """Returns, for each workload, what share of the steps' time each kind of check takes, and how much slower it is by turns."""
    engines = {kind: LLM(model, kv_memory="512MiB", kv_check=kind) for kind in ("off", "sample", "all")}
    figures: dict[str, Any] = {}
    for name, num_rounds in CHECK_ROUNDS.items():
        workload = check_workload(name, engines["off"].engine.vocab_size)
        sides = {kind: CheckedSide(llm, workload) for kind, llm in engines.items()}
        seconds = by_turns({kind: side.run for kind, side in sides.items()}, num_rounds)
        for kind in ("sample", "all"):
            figures[f"{kind}, {name}"] = {
                "share_of_steps": sides[kind].share(),
                "time_ratio": ratios(seconds[kind], seconds["off"]),
            }
    for name, figure in figures.items():
        ratio = figure["time_ratio"]
        print(f"  {name:20} {figure['share_of_steps']:.2%} of the steps; {ratio['median']:.3f} times as long as without", end="")
        print(f" ({ratio['low']:.3f} to {ratio['high']:.3f}, {ratio['rounds']} rounds)")
    return figures


def check_workload(name: str, vocab_size: int) -> Workload:
    """Returns one of the workloads of `CHECK_ROUNDS`."""
    if name == "W1":
        return one_request(vocab_size)
    return Workload(name, random_prompts([64] * 16, vocab_size=vocab_size), [48] * 16)


class CheckedSide:
    """One engine and its work."""

    def __init__(self, llm: LLM, workload: Workload):
        self._llm = llm
        self._workload = workload
        check = llm.engine._runner.kv_check
        self._check_seconds = [] if check is None else time_checks(check)
        self._first_step_seconds = llm.stats().execute_seconds

    def run(self) -> float:
        """Does the work once and returns the seconds."""
        self._llm.engine.reset_prefix_cache()
        started = time.perf_counter()
        self._llm.generate(prompts(self._workload), parameters(self._workload))
        return time.perf_counter() - started

    def share(self) -> float:
        """Returns the checks' own time, as a share of the rest of the steps'."""
        checks = sum(self._check_seconds)
        return checks / (self._llm.stats().execute_seconds - self._first_step_seconds - checks)


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
    parser.add_argument("--output", type=Path, help="write the JSON here too; other figures that are there stay")
    arguments = parser.parse_args()
    measurements: dict[str, Callable[[], Any]] = {
        "held": measure_held,
        "waste": measure_waste,
        "chat": lambda: measure_chat(LLM(arguments.model, kv_memory="256MiB")),
        "hog": lambda: measure_hog(arguments.model),
        "check": lambda: measure_check(arguments.model),
    }
    figures = saved_figures(arguments.output)
    for name in arguments.only.split(","):
        figures[name] = measurements[name]()
    save("memory", {"model": arguments.model, "figures": figures}, arguments.output)


if __name__ == "__main__":
    main()
