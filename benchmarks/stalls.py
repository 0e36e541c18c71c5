"""How long answers stall when a long prompt arrives among them.

Usage: python benchmarks/stalls.py [--model NAME] [--weights FORMAT] [--num-threads N] [--output FILE]

Sixteen sequences decode; then one prompt of 4,096 tokens arrives, and they go on until its first token is there and beyond. The
gap is the time between two tokens of the same answer. The answers are compared with those that the same requests get without the
long prompt. Prints a table, and one line of JSON last.
"""

import argparse
import statistics
import sys
import time

from octavo import LLM, SamplingParams
from octavo.config import DEFAULT_MODEL
from reporting import add_output_argument, save
from workloads import random_prompts

NUM_DECODES = 16
DECODE_PROMPT_TOKENS = 64
LONG_PROMPT_TOKENS = 4096
QUIET_STEPS = 64  # before the prompt arrives, and after its first token


def greedy(num_tokens: int) -> SamplingParams:
    """Returns parameters that generate exactly ``num_tokens``."""
    return SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)


def run(llm: LLM, prompts: list[list[int]], num_output_tokens: int, long_prompt: list[int] | None) -> dict:
    """Serves the prompts together, the long one among them after `QUIET_STEPS` steps.

    Returns:
        each answer's tokens, the gaps in milliseconds before and after the long prompt came, and its time to the first token.
    """
    engine = llm.engine
    engine.reset_prefix_cache()
    ids = [engine.add_request(prompt, greedy(num_output_tokens)) for prompt in prompts]
    while any(not engine.peek(request_id).outputs[0].token_ids for request_id in ids):
        engine.step()
    gaps_ms = {"before": step_gaps_ms(llm, QUIET_STEPS), "beside": [], "after": []}
    ttft_ms = None
    if long_prompt is not None:
        late = engine.add_request(long_prompt, greedy(1))
        while engine.is_in_flight(late):
            gaps_ms["beside"] += step_gaps_ms(llm, 1)
        ttft_ms = engine.take(late).metrics.ttft_ms
        gaps_ms["after"] = step_gaps_ms(llm, QUIET_STEPS)
    while engine.has_unfinished_requests:
        engine.step()
    return {"answers": [engine.take(request_id).outputs[0].token_ids for request_id in ids], "gaps_ms": gaps_ms, "ttft_ms": ttft_ms}


def step_gaps_ms(llm: LLM, num_steps: int) -> list[float]:
    """Returns the time of each of the next steps; each gives every answer one token."""
    gaps_ms = []
    for _ in range(num_steps):
        started = time.perf_counter()
        deltas = llm.engine.step()
        gaps_ms.append(1e3 * (time.perf_counter() - started))
        if sum(len(delta.token_ids) for delta in deltas) < NUM_DECODES:
            sys.exit("an answer got no token in a step")
    return gaps_ms


def main() -> None:
    """Checks, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--num-threads", type=int, default=None)
    add_output_argument(parser)
    arguments = parser.parse_args()
    llm = LLM(arguments.model, weights=arguments.weights, num_threads=arguments.num_threads, kv_memory="1GiB", seed=0)
    lengths = [DECODE_PROMPT_TOKENS] * NUM_DECODES + [LONG_PROMPT_TOKENS]
    *prompts, long_prompt = random_prompts(lengths, vocab_size=llm.tokenizer.vocab_size)
    num_output_tokens = QUIET_STEPS * 2 + LONG_PROMPT_TOKENS // 16
    alone = run(llm, prompts, num_output_tokens, None)
    beside = run(llm, prompts, num_output_tokens, long_prompt)
    if alone["answers"] != beside["answers"]:
        sys.exit("the long prompt changed an answer")
    report = {"parameters": {"model": arguments.model, "weights": arguments.weights}, **summarise(beside)}
    for name in ("median_before_ms", "median_ms", "slowest_ms", "slowest_to_median", "slowest_to_before", "long_prompt_ttft_ms"):
        print(f"{name:22}{report[name]:10.2f}")
    save("stalls", report, arguments.output)


def summarise(result: dict) -> dict[str, float]:
    """Returns the medians, the slowest gap and their ratios."""
    before, beside, after = (result["gaps_ms"][name] for name in ("before", "beside", "after"))
    everything = before + beside + after
    median, slowest = statistics.median(everything), max(everything)
    return {
        "median_before_ms": statistics.median(before),
        "median_beside_ms": statistics.median(beside),
        "median_ms": median,
        "slowest_ms": slowest,
        "slowest_to_median": slowest / median,
        "slowest_to_before": slowest / statistics.median(before),
        "steps_beside": len(beside),
        "long_prompt_ttft_ms": result["ttft_ms"],
    }


if __name__ == "__main__":
    main()
