"""``octavo demo``: what paging buys, shown by one real run.

Owns: the conversations and the report. Must not know: how anything in it is achieved; every figure is a counter of the run.

Thirty-two conversations share one system prompt, in a KV memory that would hold two if each were given room for the longest
answer. Three of them are then answered again, alone and from an empty prefix cache, and compared bit by bit.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from octavo.cli.terminal import progress_bar, working
from octavo.comparison.conversations import SYSTEM_PROMPT, TOPICS
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from octavo import LLM, RequestOutput, SamplingParams
    from octavo.engine.stats import EngineStats

KV_MEMORY = "128MiB"
MAX_MODEL_LEN = 2048
TEMPERATURE = 0.7
MIN_ANSWER_TOKENS, MAX_ANSWER_TOKENS = 48, 96
CHECKED = (0, 13, 31)  # the conversations that are answered again, alone


@dataclass
class Peak:
    """The engine's figures at the step with the most KV blocks in use."""

    stats: "EngineStats | None" = None

    def note(self, stats: "EngineStats") -> None:
        """Keeps ``stats`` if more blocks are in use than ever before."""
        if self.stats is None or stats.memory.num_used_blocks > self.stats.memory.num_used_blocks:
            self.stats = stats


@click.command("demo")
@click.option("--num-threads", type=int, help="Threads that compute; every processor this process may use if not given.")
def command(num_threads: int | None) -> None:
    """Answer 32 conversations at once in a small KV budget, and show what paging saved."""
    from octavo import LLM

    with working("fetching and loading the model"):
        llm = LLM(kv_memory=KV_MEMORY, max_model_len=MAX_MODEL_LEN, num_threads=num_threads)
    click.echo(f"{len(TOPICS)} conversations with one system prompt, {KV_MEMORY} of KV memory, {llm.config.model}\n")
    conversations, params = _conversations(), _params()
    started = time.perf_counter()
    outputs, peak = _answer(llm, conversations, params)
    elapsed_s = time.perf_counter() - started
    for index in CHECKED:
        click.echo(f"about {TOPICS[index]}: {_first_words(outputs[index])}")
    click.echo()
    _print_table(_report(llm.stats(), peak, outputs, elapsed_s))
    differing = _differing_alone(llm, conversations, params, outputs)
    click.echo(f"\nexact: {'no' if differing else 'yes'}")
    if differing:
        raise OctavoError(f"alone, the answers about {', '.join(TOPICS[index] for index in differing)} came out differently")


def _conversations() -> list[list[dict[str, str]]]:
    system = {"role": "system", "content": SYSTEM_PROMPT}
    return [[system, {"role": "user", "content": f"What should everybody know about {topic}?"}] for topic in TOPICS]


def _params() -> "list[SamplingParams]":
    """Returns each conversation's parameters: drawn answers, not greedy ones, so that the draws are compared too."""
    from octavo import SamplingParams

    spread = MAX_ANSWER_TOKENS - MIN_ANSWER_TOKENS
    lengths = (MIN_ANSWER_TOKENS + spread * index // (len(TOPICS) - 1) for index in range(len(TOPICS)))
    return [
        SamplingParams(temperature=TEMPERATURE, seed=seed, max_tokens=length, logprobs=1, ignore_eos=True)
        for seed, length in enumerate(lengths)
    ]


def _answer(
    llm: "LLM", conversations: list[list[dict[str, str]]], params: "list[SamplingParams]"
) -> "tuple[list[RequestOutput], EngineStats]":
    peak = Peak()
    with progress_bar("answered") as bar:
        task = bar.add_task("reading prompts", total=len(conversations))

        def note_step(num_finished: int, _num_requests: int) -> None:
            stats = llm.stats()
            peak.note(stats)
            used, total = stats.memory.num_used_blocks, stats.memory.num_blocks
            bar.update(task, completed=num_finished, description=f"{stats.num_running} running, {used}/{total} blocks")

        outputs = llm.chat(conversations, params, on_progress=note_step)
    assert peak.stats is not None, "a run has at least one step"
    return outputs, peak.stats


def _first_words(output: "RequestOutput") -> str:
    return " ".join(output.outputs[0].text.split()[:16]) + " …"


def _report(total: "EngineStats", peak: "EngineStats", outputs: "list[RequestOutput]", elapsed_s: float) -> dict[str, str]:
    """Returns the lines of the table: what is shown, and its figure."""
    memory = peak.memory
    block_size = memory.num_allocated_slots // memory.num_used_blocks
    contiguous = memory.num_blocks * block_size // MAX_MODEL_LEN
    num_output_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return {
        "conversations held at once, paged": f"{total.num_peak_running}",
        f"the same bytes reserved for {MAX_MODEL_LEN:,} tokens each would hold": f"{contiguous}",
        "KV blocks in use at peak": f"{memory.num_used_blocks} of {memory.num_blocks}",
        "allocated KV slots that held tokens at peak": f"{memory.num_computed_slots / memory.num_allocated_slots:.1%}",
        "KV slots saved by sharing at peak": f"{memory.num_saved_slots:,}",
        "prompt tokens found in the prefix cache": f"{sum(output.num_prefix_hit_tokens for output in outputs):,}",
        "preemptions": f"{total.num_preemptions}",
        "output tokens per second": f"{num_output_tokens / elapsed_s:.0f}",
    }


def _print_table(lines: dict[str, str]) -> None:
    width, figure_width = max(map(len, lines)), max(map(len, lines.values()))
    for name, figure in lines.items():
        click.echo(f"{name:<{width}}  {figure:>{figure_width}}")


def _differing_alone(
    llm: "LLM", conversations: list[list[dict[str, str]]], params: "list[SamplingParams]", outputs: "list[RequestOutput]"
) -> list[int]:
    """Answers some conversations again, each alone; returns those whose tokens or log-probabilities differ in any bit."""
    differing = []
    for index in CHECKED:
        llm.engine.reset_prefix_cache()
        (alone,) = llm.chat(conversations[index], params[index])
        before, after = outputs[index].outputs[0], alone.outputs[0]
        if (before.token_ids, before.logprobs) != (after.token_ids, after.logprobs):
            differing.append(index)
    return differing
