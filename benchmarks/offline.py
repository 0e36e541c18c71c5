"""Times the offline engine on the workloads of `workloads.py`, after checking that batching changes no answer.

Usage: python benchmarks/offline.py [--model NAME | --shape NAME] [--weights FORMAT] [--kv-dtype FORMAT] [--workloads NAME …]
       [--num-threads N] [--repeats N] [--output FILE]

Some requests of each workload are answered alone first; no figure is printed unless they have the same tokens in the batch. Figures
move from machine to machine and from minute to minute: this machine's memory and arithmetic are probed before and after each
workload, and the shares of the best that any probe reached say more than the rates. With --shape the model has random weights, in
the size of a model that `octavo plan` knows. Prints a table, and one line of JSON last.
"""

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machine import Limits
from octavo import LLM, RequestOutput, SamplingParams
from octavo.config import DEFAULT_MODEL, KV_DTYPES, WEIGHT_FORMATS
from octavo.engine.loading import read_spec
from octavo.kernels.cpu_count import default_num_threads
from octavo.models.model_files import load_model_files
from octavo.models.spec import ModelSpec
from octavo.planner.engine_models import count_parameters
from octavo.planner.shipped_models import shipped_models
from random_model import write_shape
from reporting import add_output_argument, save
from workloads import (
    NUM_SHARING,
    OWN_TOKENS,
    SHARED_TOKENS,
    Workload,
    long_contexts,
    long_prompt,
    many_requests,
    one_request,
    shared_prefix,
)

KV_MEMORY = "2GiB"
WORKLOADS: dict[str, Callable[[int], Workload]] = {
    "W1": one_request,
    "W64": many_requests,
    "P1024": lambda vocab_size: long_prompt(vocab_size, num_tokens=1024),
    "P8192": lambda vocab_size: long_prompt(vocab_size, num_tokens=8192),
    "D16x4096": long_contexts,
    "S64": shared_prefix,
}
LONG = ("P8192", "D16x4096")  # timed once: they take minutes, and noise averages out within them
MAX_SHARED_PROMPT_TOKENS = NUM_SHARING * OWN_TOKENS + SHARED_TOKENS + OWN_TOKENS


@dataclass(frozen=True)
class Timing:
    """One workload's figures: medians over the repeats.

    Attributes:
        ttft_ms: mean time from the call to a request's first token.
        computed_prompt_tokens: those that went through the model; less than the prompts' where some were found in the cache.
        accounting_ms_per_step: scheduling and bookkeeping, everything of a step but arrays, forward pass and sampling.
        read_gb_per_s: weights and KV that decoding read, after the first token; None where arithmetic is the bound.
        gflop_per_s: what the model's matrices multiplied and added; attention is left out. None where reading is the bound.
    """

    workload: str
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    ttft_ms: float
    steps: int
    computed_prompt_tokens: int
    accounting_ms_per_step: float
    read_gb_per_s: float | None
    gflop_per_s: float | None


def parameters(workload: Workload) -> list[SamplingParams]:
    """Returns greedy parameters that generate exactly the workload's lengths."""
    num_top = 5 if workload.num_output_tokens == 1 else None  # a single token alone would say little when it is compared
    return [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False, logprobs=num_top)
        for length in workload.output_tokens
    ]


def prompts(workload: Workload) -> list[dict[str, list[int]]]:
    """Returns the workload's prompts as the engine takes them."""
    return [{"prompt_token_ids": token_ids} for token_ids in workload.prompts]


def content(output: RequestOutput) -> tuple:
    """Returns what must be equal bit for bit."""
    answer = output.outputs[0]
    return answer.token_ids, answer.logprobs


def answer_alone(llm: LLM, workload: Workload) -> dict[int, tuple]:
    """Returns what some of the requests get with the engine to themselves, by their place in the workload.

    A workload of one request is alone anyway: that one runs beside another, which has its prompt cut into smaller pieces.
    """
    last = len(workload.prompts) - 1
    answers = {}
    for index in sorted({0, last // 2, last}):
        llm.engine.reset_prefix_cache()
        given, params = prompts(workload)[index], parameters(workload)[index]
        if last == 0:
            llm.engine.add_request([1, 2, 3], SamplingParams(max_tokens=4096, ignore_eos=True), request_id="neighbour")
            llm.engine.step()
        (output,) = llm.generate([given], [params])
        llm.engine.discard("neighbour")
        answers[index] = content(output)
    return answers


@dataclass(frozen=True)
class Run:
    """One run of a workload."""

    elapsed_s: float
    ttft_ms: float
    steps: int
    accounting_s: float
    computed_prompt_tokens: int


def serve(llm: LLM, workload: Workload, expected: dict[int, tuple]) -> Run:
    """Runs the workload once; stops the benchmark if an answer is not the expected one, or if shared tokens were computed twice."""
    llm.engine.reset_prefix_cache()
    if workload.is_prefilled:
        llm.generate(prompts(workload), SamplingParams(temperature=0.0, max_tokens=1, detokenize=False))
    before = llm.stats()
    started = time.perf_counter()
    outputs = llm.generate(prompts(workload), parameters(workload))
    elapsed_s = time.perf_counter() - started
    after = llm.stats()
    check(workload, outputs, expected)
    # An answer's last token is not computed.
    num_output_tokens = workload.num_output_tokens - len(workload.prompts)
    num_prompt_tokens = after.num_computed_tokens - before.num_computed_tokens - num_output_tokens
    if workload.name == f"S{NUM_SHARING}" and num_prompt_tokens > MAX_SHARED_PROMPT_TOKENS:
        sys.exit(f"{num_prompt_tokens} prompt tokens were computed; sharing leaves at most {MAX_SHARED_PROMPT_TOKENS}")
    return Run(
        elapsed_s,
        ttft_ms=statistics.mean(output.metrics.ttft_ms for output in outputs),
        steps=after.num_steps - before.num_steps,
        accounting_s=after.schedule_seconds + after.update_seconds - before.schedule_seconds - before.update_seconds,
        computed_prompt_tokens=num_prompt_tokens,
    )


def check(workload: Workload, outputs: list[RequestOutput], expected: dict[int, tuple]) -> None:
    """Stops the benchmark unless every answer has its length and those that were given alone are the same."""
    for output, length in zip(outputs, workload.output_tokens, strict=True):
        if len(output.outputs[0].token_ids) != length:
            sys.exit(f"{output.request_id} has {len(output.outputs[0].token_ids)} tokens instead of {length}")
    for index, answer in expected.items():
        if content(outputs[index]) != answer:
            sys.exit(f"request {index} of {workload.name} has another answer alone than in the batch")


def measure(llm: LLM, spec: ModelSpec, workload: Workload, *, repeats: int) -> Timing:
    """Runs the workload several times, each from the same state of the prefix cache."""
    expected = answer_alone(llm, workload)
    runs = [serve(llm, workload, expected) for _ in range(1 if workload.name in LONG else repeats)]
    median_s = statistics.median(run.elapsed_s for run in runs)
    ttft_s = statistics.median(run.ttft_ms for run in runs) / 1e3
    is_read_bound = workload.name == "W1" or workload.is_prefilled
    num_decoded = workload.num_output_tokens - len(workload.prompts)
    return Timing(
        workload.name,
        output_tokens_per_s=workload.num_output_tokens / median_s,
        prompt_tokens_per_s=workload.num_prompt_tokens / median_s,
        ttft_ms=1e3 * ttft_s,
        steps=runs[0].steps,
        computed_prompt_tokens=runs[0].computed_prompt_tokens,
        accounting_ms_per_step=1e3 * sum(run.accounting_s for run in runs) / sum(run.steps for run in runs),
        read_gb_per_s=num_decoded * read_bytes_per_token(llm, workload) / (median_s - ttft_s) / 1e9 if is_read_bound else None,
        gflop_per_s=None if is_read_bound else matrix_flop(spec, workload, runs[0].computed_prompt_tokens) / median_s / 1e9,
    )


def read_bytes_per_token(llm: LLM, workload: Workload) -> float:
    """Returns the bytes that decoding reads per output token: the weights once a step, and the KV."""
    stats = llm.stats()
    num_requests = len(workload.prompts)
    kv_bytes_per_token = stats.kv_block_bytes / llm.config.block_size  # of a model with one layer group
    mean_context = (workload.num_prompt_tokens + workload.num_output_tokens / 2) / num_requests
    return stats.weights_bytes / num_requests + mean_context * kv_bytes_per_token


def matrix_flop(spec: ModelSpec, workload: Workload, computed_prompt_tokens: int) -> float:
    """Returns a run's multiplications and additions: the layers' matrices for each computed token, the head for each drawn one."""
    parameters = count_parameters(spec)
    num_computed = computed_prompt_tokens + workload.num_output_tokens - len(workload.prompts)
    return 2.0 * (num_computed * (parameters.attention + parameters.mlp) + workload.num_output_tokens * parameters.embedding)


def share_of_limit(timing: Timing, limits: Limits) -> float:
    """Returns what part of the probed bandwidth or arithmetic a workload used, whichever is taken as its bound."""
    if timing.read_gb_per_s is not None:
        return limits.read_share(timing.read_gb_per_s)
    assert timing.gflop_per_s is not None
    return limits.arithmetic_share(timing.gflop_per_s)


def print_row(timing: Timing, limits: Limits) -> None:
    """Prints a workload's figures for people."""
    cells = f"{timing.output_tokens_per_s:12.1f}{timing.prompt_tokens_per_s:12.1f}{timing.ttft_ms:12.1f}"
    cells += f"{timing.computed_prompt_tokens:10}{timing.accounting_ms_per_step:10.3f}"
    print(f"{timing.workload:10}{cells}{share_of_limit(timing, limits):>10.0%}", flush=True)


def read_arguments() -> argparse.Namespace:
    """Returns the command line's values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--model", default=DEFAULT_MODEL)
    models.add_argument("--shape", default=None, choices=tuple(shipped_models()), metavar="NAME")
    parser.add_argument("--weights", default="auto", choices=WEIGHT_FORMATS)
    parser.add_argument("--kv-dtype", default="bf16", choices=KV_DTYPES)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=tuple(WORKLOADS))
    parser.add_argument("--num-threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    add_output_argument(parser)
    return parser.parse_args()


def load(arguments: argparse.Namespace, settings: dict[str, Any]) -> tuple[LLM, ModelSpec]:
    """Returns the model that is asked for, and its description."""
    if arguments.shape is None:
        return LLM(arguments.model, kv_memory=KV_MEMORY, seed=0, **settings), read_spec(load_model_files(arguments.model))
    with tempfile.TemporaryDirectory() as folder:
        write_shape(Path(folder), arguments.shape)
        return LLM(folder, kv_memory=KV_MEMORY, seed=0, **settings), read_spec(load_model_files(folder))


def main() -> None:
    """Checks, measures, prints."""
    arguments = read_arguments()
    settings = {"weights": arguments.weights, "kv_dtype": arguments.kv_dtype, "num_threads": arguments.num_threads}
    llm, spec = load(arguments, settings)
    print(f"{'':10}{'output':>12}{'prompt':>12}{'first':>12}{'computed':>10}{'books':>10}{'share of':>10}")
    print(f"{'':10}{'tokens/s':>12}{'tokens/s':>12}{'token ms':>12}{'prompt':>10}{'ms/step':>10}{'limit':>10}")
    timings, limits = [], Limits(arguments.num_threads or default_num_threads())
    for name in arguments.workloads:
        timings.append(measure(llm, spec, WORKLOADS[name](llm.engine.vocab_size), repeats=arguments.repeats))
        limits.probe()
        print_row(timings[-1], limits)
    report = {
        "parameters": {"model": arguments.shape or arguments.model, **settings, "repeats": arguments.repeats},
        "weights_bytes": llm.stats().weights_bytes,
        "peak_resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "machine": asdict(limits.rates),
        "timings": [asdict(timing) | {"share_of_limit": share_of_limit(timing, limits)} for timing in timings],
    }
    save("offline", report, arguments.output)


if __name__ == "__main__":
    main()
