"""Times the disk cache: a long prefix after a restart, and what the tier costs beside steady work. Results are checked first.

Usage: python benchmarks/disk_cache.py [--model NAME] [--num-threads N] [--prefix-tokens N] [--repeats N]
       [--rounds N] [--only NAME …] [--directory DIR] [--output FILE]

Restart: the time to the first token of a prompt whose prefix an earlier engine left on disk, against computing it. The first token
and its log-probability must be equal bit for bit. Steady: requests in a pool so small that every block is evicted, with the tier on
and off by turns, so that both see the same minutes of a busy machine; nothing is ever hit, so the tier only costs. Transfers are
direct where the file system can; the file lies in DIR, the default temporary directory if not given. Prints a table, and one line
of JSON last.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams
from octavo.config import DEFAULT_MODEL
from octavo.kernels.cpu_count import default_num_threads
from reporting import save, saved_figures
from turns import by_turns, ratios
from workloads import random_prompts

FIRST_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, logprobs=0, ignore_eos=True)
STEADY_REQUESTS, STEADY_PROMPT_TOKENS, STEADY_ANSWER_TOKENS = 12, 192, 32
STEADY_POOL = "60 blocks"  # four of these requests at a time; every block makes way for a later request's
DISK_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Restart:
    """Times to the first token, medians, in seconds.

    Attributes:
        opening_s: loading the model with the tier, which reads every weight once more for the fingerprint.
    """

    prefix_tokens: int
    computed_s: float
    from_disk_s: float
    read_bytes: int
    opening_s: float


@dataclass(frozen=True)
class Steady:
    """Work beside which the tier only writes.

    Attributes:
        off_tokens_per_s, on_tokens_per_s: medians of output tokens per second.
        time_ratio: of the time with the tier to that without it, round by round.
    """

    off_tokens_per_s: float
    on_tokens_per_s: float
    time_ratio: dict[str, float]
    written_bytes: int
    dropped_blocks: int


def prompt_of(num_tokens: int, vocab_size: int, seed: int) -> dict[str, list[int]]:
    """Returns a prompt of random token ids."""
    (token_ids,) = random_prompts([num_tokens], vocab_size=vocab_size, seed=seed)
    return {"prompt_token_ids": token_ids}


def first_token(llm: LLM, prompt: dict[str, list[int]]) -> tuple[float, object]:
    """Returns the seconds to the first token, and the token with its log-probability."""
    started = time.perf_counter()
    (output,) = llm.generate(prompt, FIRST_TOKEN)
    seconds = time.perf_counter() - started
    return seconds, (output.outputs[0].token_ids, output.outputs[0].logprobs)


def measure_restart(settings: dict[str, Any], directory: Path, num_tokens: int, repeats: int) -> Restart:
    """Computes a prefix, ends the engine, and reads the prefix with another one, several times."""
    settings = settings | {"kv_memory": f"{num_tokens // 16 + 64} blocks", "disk_cache_size": DISK_BYTES}
    computed, read, opening, read_bytes = [], [], [], 0
    for repeat in range(repeats):
        folder = directory / f"restart-{repeat}"
        first = LLM(**settings, disk_cache=str(folder))
        prompt = prompt_of(num_tokens, first.tokenizer.vocab_size, repeat)
        seconds, expected = first_token(first, prompt)
        computed.append(seconds)
        first.close()
        started = time.perf_counter()
        second = LLM(**settings, disk_cache=str(folder))
        opening.append(time.perf_counter() - started)
        seconds, found = first_token(second, prompt)
        disk = second.stats().disk
        if found != expected or disk.num_read_tokens < num_tokens - 16:
            raise SystemExit(f"the prefix did not come back as it was: {disk}, {found} for {expected}")
        read.append(seconds)
        read_bytes = disk.num_read_bytes
        second.close()
    return Restart(num_tokens, *map(statistics.median, (computed, read)), read_bytes, statistics.median(opening))


class SteadySide:
    """One engine that answers fresh requests in every round; both sides' are the same."""

    def __init__(self, llm: LLM):
        self.llm = llm
        self.answers: list[list[list[int]]] = []

    def run(self) -> float:
        """Answers a round's requests and returns the seconds."""
        seed, vocab_size = len(self.answers), self.llm.tokenizer.vocab_size
        prompts = [prompt_of(STEADY_PROMPT_TOKENS, vocab_size, 1000 * seed + index) for index in range(STEADY_REQUESTS)]
        params = SamplingParams(max_tokens=STEADY_ANSWER_TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        outputs = self.llm.generate(prompts, params)
        seconds = time.perf_counter() - started
        self.answers.append([output.outputs[0].token_ids for output in outputs])
        return seconds


def measure_steady(settings: dict[str, Any], directory: Path, num_rounds: int) -> Steady:
    """Runs fresh requests through a small pool, with the tier and without by turns."""
    off = SteadySide(LLM(**settings, kv_memory=STEADY_POOL))
    on = SteadySide(LLM(**settings, kv_memory=STEADY_POOL, disk_cache=str(directory / "steady"), disk_cache_size=DISK_BYTES))
    seconds = by_turns({"off": off.run, "on": on.run}, num_rounds)
    if off.answers != on.answers:
        raise SystemExit("the tier changed an answer")
    disk = on.llm.stats().disk
    on.llm.close()
    num_tokens = STEADY_REQUESTS * STEADY_ANSWER_TOKENS
    rates = [num_tokens / statistics.median(seconds[name]) for name in ("off", "on")]
    return Steady(*rates, ratios(seconds["on"], seconds["off"]), disk.num_written_bytes, disk.num_dropped_blocks)


def print_restart(restart: Restart) -> None:
    """Prints the figures for people."""
    gain = restart.computed_s / restart.from_disk_s
    print(f"first token of a prompt of {restart.prefix_tokens} tokens after a restart")
    print(f"  computed   {restart.computed_s:8.2f} s")
    print(f"  from disk  {restart.from_disk_s:8.2f} s   {restart.read_bytes / 2**20:.0f} MiB, {gain:.1f} times faster")


def print_steady(steady: Steady) -> None:
    """Prints the figures for people."""
    ratio = steady.time_ratio
    print("steady work in which every block is evicted, output tokens/s")
    print(f"  tier off   {steady.off_tokens_per_s:8.1f}")
    print(f"  tier on    {steady.on_tokens_per_s:8.1f}")
    print(f"  times as long {ratio['median']:.3f} (quartiles {ratio['low']:.3f} and {ratio['high']:.3f})")


def read_arguments() -> argparse.Namespace:
    """Returns the command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--num-threads", type=int, default=default_num_threads())
    parser.add_argument("--prefix-tokens", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=3, help="restarts")
    parser.add_argument("--rounds", type=int, default=12, help="turns of steady work on either side")
    parser.add_argument("--only", nargs="+", choices=("restart", "steady"), default=("restart", "steady"))
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=None, help="write the JSON here too; other figures that are there stay")
    return parser.parse_args()


def main() -> None:
    """Measures and prints."""
    arguments = read_arguments()
    settings = {"model": arguments.model, "num_threads": arguments.num_threads}
    figures = saved_figures(arguments.output)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        if "restart" in arguments.only:
            restart = measure_restart(settings, Path(directory), arguments.prefix_tokens, arguments.repeats)
            print_restart(restart)
            figures["restart"] = asdict(restart)
        if "steady" in arguments.only:
            steady = measure_steady(settings, Path(directory), arguments.rounds)
            print_steady(steady)
            figures["steady"] = asdict(steady)
    parameters = {"model": Path(arguments.model).name, "num_threads": arguments.num_threads}
    save("disk_cache", {"parameters": parameters, "figures": figures}, arguments.output)


if __name__ == "__main__":
    main()
