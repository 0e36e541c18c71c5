"""Times the offline engine on W1 and W64 (see `workloads.py`), after checking that what it computes is right.

Usage: python benchmarks/offline.py [--model NAME] [--dtype FORMAT] [--num-threads N] [--repeats N]

Figures move from machine to machine and from minute to minute: the probe of this machine's memory and arithmetic runs between the
workloads, and the shares of it say more than the rates. Prints a table, and one line of JSON last.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo import LLM, SamplingParams, __version__
from octavo.config import DEFAULT_MODEL
from octavo.kernels.cpu import MachineRates, probe_machine
from octavo.kernels.cpu_count import default_num_threads
from octavo.kernels.processor import processor_name
from workloads import Workload, many_requests, one_request

KV_MEMORY = "1GiB"
CHECKED_REQUESTS = (0, 31, 63)


@dataclass(frozen=True)
class Timing:
    """One workload's figures: medians over the repeats.

    Attributes:
        ttft_ms: mean time from the call to a request's first token.
        accounting_ms_per_step: scheduling and bookkeeping, everything of a step but arrays, forward pass and sampling.
    """

    workload: str
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    ttft_ms: float
    steps: int
    accounting_ms_per_step: float


def parameters(workload: Workload) -> list[SamplingParams]:
    """Returns greedy parameters that generate exactly the workload's lengths."""
    return [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False) for length in workload.output_tokens
    ]


def prompts(workload: Workload) -> list[dict[str, list[int]]]:
    """Returns the workload's prompts as the engine takes them."""
    return [{"prompt_token_ids": token_ids} for token_ids in workload.prompts]


def check(llm: LLM, workload: Workload) -> None:
    """Stops the benchmark unless some of the requests, alone, get the tokens that they got in the batch."""
    together = llm.generate(prompts(workload), parameters(workload))
    for output, length in zip(together, workload.output_tokens, strict=True):
        if len(output.outputs[0].token_ids) != length:
            sys.exit(f"{output.request_id} has {len(output.outputs[0].token_ids)} tokens instead of {length}")
    for index in CHECKED_REQUESTS:
        llm.engine.reset_prefix_cache()
        (alone,) = llm.generate(prompts(workload)[index], parameters(workload)[index])
        if alone.outputs[0].token_ids != together[index].outputs[0].token_ids:
            sys.exit(f"request {index} of {workload.name} has other tokens alone than in the batch")


def measure(llm: LLM, workload: Workload, *, repeats: int) -> Timing:
    """Runs the workload several times, each from an empty prefix cache."""
    elapsed, ttft = [], []
    before = llm.stats()
    for _ in range(repeats):
        llm.engine.reset_prefix_cache()
        started = time.perf_counter()
        outputs = llm.generate(prompts(workload), parameters(workload))
        elapsed.append(time.perf_counter() - started)
        ttft.append(statistics.mean(output.metrics.ttft_ms for output in outputs))
    after = llm.stats()
    steps = after.num_steps - before.num_steps
    accounting_s = after.schedule_seconds + after.update_seconds - before.schedule_seconds - before.update_seconds
    median_s = statistics.median(elapsed)
    return Timing(
        workload.name,
        output_tokens_per_s=workload.num_output_tokens / median_s,
        prompt_tokens_per_s=workload.num_prompt_tokens / median_s,
        ttft_ms=statistics.median(ttft),
        steps=steps // repeats,
        accounting_ms_per_step=1e3 * accounting_s / steps,
    )


def start_to_first_token_s(model: str) -> float:
    """Returns the time from starting the command to its end after one token."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "octavo", "generate", "The capital of France is", "--model", model, "--max-tokens", "1"]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def print_table(timings: list[Timing], probes: dict[str, MachineRates], weights_bytes: int) -> None:
    """Prints the figures for people."""
    print(f"{'':6}{'output':>12}{'prompt':>12}{'first':>10}{'books':>10}{'weights read':>22}")
    print(f"{'':6}{'tokens/s':>12}{'tokens/s':>12}{'token ms':>10}{'ms/step':>10}{'share of bandwidth':>22}")
    for timing in timings:
        share = read_share(timing, probes[timing.workload], weights_bytes)
        cells = f"{timing.output_tokens_per_s:12.1f}{timing.prompt_tokens_per_s:12.1f}{timing.ttft_ms:10.1f}"
        print(f"{timing.workload:6}{cells}{timing.accounting_ms_per_step:10.3f}" + (f"{share:22.0%}" if share else f"{'–':>22}"))


def read_share(timing: Timing, probe: MachineRates, weights_bytes: int) -> float | None:
    """Returns how much of the read bandwidth reading the weights once a token takes; only W1 is bound by that."""
    if timing.workload != "W1":
        return None
    return timing.output_tokens_per_s * weights_bytes / (probe.read_gb_per_s * 1e9)


def commit() -> str:
    """Returns the checkout's commit, or "unknown" outside one."""
    root = Path(__file__).parent
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def read_arguments() -> argparse.Namespace:
    """Returns the command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--num-threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    """Checks, measures, prints."""
    arguments = read_arguments()
    llm = LLM(arguments.model, dtype=arguments.dtype, num_threads=arguments.num_threads, kv_memory=KV_MEMORY)
    vocab_size = llm.tokenizer.vocab_size
    workloads = [one_request(vocab_size), many_requests(vocab_size)]
    check(llm, workloads[1])
    timings, probes = [], {}
    for workload in workloads:
        probes[workload.name] = probe_machine(arguments.num_threads or default_num_threads())
        timings.append(measure(llm, workload, repeats=arguments.repeats))
    stats = llm.stats()
    print_table(timings, probes, stats.weights_bytes)
    report = {
        "commit": commit(),
        "version": __version__,
        "python": platform.python_version(),
        "processor": processor_name(),
        "parameters": vars(arguments),
        "weights_bytes": stats.weights_bytes,
        "peak_resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "start_to_first_token_s": start_to_first_token_s(arguments.model),
        "machine": {name: asdict(probe) for name, probe in probes.items()},
        "timings": [asdict(timing) for timing in timings],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
