"""The same conversations through the same model, once for each kind of KV memory.

Owns: the runs, what is noted of each step, and whether the answers are the same. Must not know: how results are shown.

Invariants:
1. Between the runs only the memory differs: weights, kernels, settings, prompts, seeds and bytes are the same objects or values.
2. Answers are compared with their log-probabilities, bit for bit.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from octavo import __version__
from octavo.comparison.conversations import Conversation
from octavo.comparison.memories import MEMORY_KINDS, MemoryKind, make_memory
from octavo.comparison.record import Comparison, Difference, Moment, RequestTimes, Run, Slots, make_figures, thin_moments
from octavo.config import EngineConfig
from octavo.engine.loading import KVSizes, ModelParts, build_engine
from octavo.errors import RequestError
from octavo.kernels.cpu_count import default_num_threads
from octavo.kernels.processor import processor_name
from octavo.memory.kv_manager import KVManager
from octavo.memory.memory_stats import MemoryStats
from octavo.memory.reserving_manager import ReservingManager
from octavo.models.model_files import ModelFiles
from octavo.outputs import Logprob, RequestOutput
from octavo.sampling_params import SamplingParams

TEMPERATURE = 0.7  # drawn answers, not greedy ones, so that the draws are compared too
TITLE = "What paging buys"
SUMMARY = (
    "{} conversations with one system prompt, one model, {} of KV memory, answered {} times over. Only the way in which the memory "
    "is given to conversations differs: everything else, down to the kernels and the seeds, is the same."
)
NOTES = (
    "All conversations arrive at the same moment. Every run starts with an empty memory of the same number of bytes. A contiguous "
    "reservation is a run of consecutive blocks, placed by the buddy method when its conversation starts; the kernels cannot tell "
    "it from any other block table. The reservation by power of two is told how long the answer will be, which no engine can know.",
    "Answers are drawn, not greedy, and are compared token by token with their log-probabilities, bit for bit. Times are of this "
    "machine in this hour, and contain what else it did meanwhile. Who ran with whom in which memory does not depend on them.",
)

OnProgress = Callable[[str, int], None]  # (the run's name, conversations finished)


class Answer(NamedTuple):
    """What must be the same in every run."""

    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]


@dataclass(frozen=True)
class Question:
    """One conversation as the engine takes it."""

    topic: str
    token_ids: list[int]
    params: SamplingParams


def compare_memories(
    parts: ModelParts, config: EngineConfig, conversations: Sequence[Conversation], command: str, on_progress: OnProgress
) -> Comparison:
    """Runs the conversations on every kind of memory.

    Args:
        command: what was typed.
        on_progress: called after each step.

    Raises:
        ConfigError: the memory has no contiguous room for a sequence of ``max_model_len`` tokens.
        RequestError, CapacityError: a conversation does not fit, or the model has no chat template.
    """
    questions = [_question(parts.files, conversation, seed) for seed, conversation in enumerate(conversations)]
    runs, answers = [], []
    for kind in MEMORY_KINDS:
        measurement = Measurement(parts, config, kind, questions)
        runs.append(measurement.run(partial(on_progress, kind.name)))
        answers.append(measurement.answers)
        sizes = measurement.sizes
    differing = [index for index in range(len(questions)) if any(run[index] != answers[0][index] for run in answers)]
    return Comparison(
        title=TITLE,
        summary=SUMMARY.format(len(questions), _mebibytes(sizes), len(MEMORY_KINDS)),
        notes=NOTES,
        command=command,
        settings=_settings(parts, config, sizes, questions),
        runs=tuple(runs),
        num_compared=len(questions),
        num_equal=len(questions) - len(differing),
        difference=_difference(differing[0], questions, runs, answers) if differing else None,
    )


def _mebibytes(sizes: KVSizes) -> str:
    return f"{sizes.num_blocks * sizes.layout.block_bytes / 2**20:.4g} MiB"


def _settings(parts: ModelParts, config: EngineConfig, sizes: KVSizes, questions: Sequence[Question]) -> dict[str, str]:
    num_prompt_tokens = sum(len(question.token_ids) for question in questions)
    num_answer_tokens = sum(question.params.max_tokens for question in questions)
    return {
        "model": parts.files.name,
        "processor": processor_name(),
        "threads": str(config.num_threads or default_num_threads()),
        "KV memory": f"{_mebibytes(sizes)}: {sizes.num_blocks} blocks of {config.block_size} tokens, {config.kv_dtype}",
        "longest sequence": f"{sizes.max_model_len:,} tokens",
        "conversations": f"{len(questions)}, all at once: {num_prompt_tokens:,} prompt and {num_answer_tokens:,} answer tokens",
        "sampling": f"temperature {TEMPERATURE:g}, a seed for each conversation",
        "version": __version__,
    }


def _question(files: ModelFiles, conversation: Conversation, seed: int) -> Question:
    if files.chat_template is None:
        raise RequestError(f"{files.name} has no chat template", field="messages", hint="give one with chat_template")
    token_ids = files.tokenizer.encode_chat(files.chat_template.render(conversation.messages))
    params = SamplingParams(
        temperature=TEMPERATURE, seed=seed, max_tokens=conversation.num_answer_tokens, logprobs=1, ignore_eos=True
    )
    return Question(conversation.topic, token_ids, params)


class Measurement:
    """One run on one kind of memory.

    Attributes:
        sizes: how the memory is cut.
        answers: for each question its tokens and their log-probabilities, once it ran.
    """

    def __init__(self, parts: ModelParts, config: EngineConfig, kind: MemoryKind, questions: Sequence[Question]):
        self._kind = kind
        self._questions = questions
        self._lengths = {tuple(question.token_ids): len(question.token_ids) + question.params.max_tokens for question in questions}
        self._engine = build_engine(config, *parts, make_memory=self._make_memory)
        self._moments: list[Moment] = []
        self.answers: list[Answer] = []

    def _make_memory(self, config: EngineConfig, sizes: KVSizes) -> KVManager:
        self.sizes = sizes
        self._memory = make_memory(self._kind, config, sizes, lambda token_ids: self._lengths[tuple(token_ids)])
        return self._memory

    def run(self, on_finished: Callable[[int], None]) -> Run:
        """Answers all questions, which come at the same moment."""
        began = time.monotonic()
        ids = [self._engine.add_request(question.token_ids, question.params) for question in self._questions]
        while self._engine.has_unfinished_requests:
            self._step(began)
            on_finished(len(ids) - self._engine.num_unfinished_requests)
        seconds = time.monotonic() - began
        outputs = [self._engine.take(request_id) for request_id in ids]
        self.answers = [Answer(output.outputs[0].token_ids, output.outputs[0].logprobs or []) for output in outputs]
        requests = tuple(_times(output, began) for output in outputs)
        return Run(
            name=self._kind.name,
            description=self._kind.description,
            figures=make_figures(requests, self._moments, seconds),
            requests=requests,
            moments=thin_moments(self._moments),
            counters=self._counters(outputs),
        )

    def _step(self, began: float) -> None:
        """Computes one step and notes who ran in it and what their memory was used for."""
        time_s = time.monotonic() - began
        num_ended = sum(delta.finish_reason is not None for delta in self._engine.step())
        stats = self._engine.stats()
        # What those that ended had is free already: note what there was before.
        slots = self._moments[-1].slots if num_ended and self._moments else self._slots(stats.memory)
        self._moments.append(Moment(time_s, stats.num_running + num_ended, stats.num_waiting, slots))

    def _slots(self, stats: MemoryStats) -> Slots:
        num_slots = stats.num_allocated_slots + (stats.num_free_blocks + stats.num_cached_blocks) * self._memory.block_size
        promised = self._memory.num_promised_slots() if isinstance(self._memory, ReservingManager) else 0
        unused = stats.num_allocated_slots - stats.num_computed_slots - promised
        free = num_slots - stats.num_allocated_slots
        return Slots(*(count / num_slots for count in (stats.num_computed_slots, promised, unused, free)))

    def _counters(self, outputs: Sequence[RequestOutput]) -> dict[str, int]:
        stats = self._engine.stats()
        return {
            "steps": stats.num_steps,
            "preemptions": stats.num_preemptions,
            "prompt_tokens": stats.num_prompt_tokens,
            "prompt_tokens_found_in_cache": sum(output.num_prefix_hit_tokens for output in outputs),
            "answer_tokens": stats.num_generated_tokens,
            "computed_tokens": stats.num_computed_tokens,
        }


def _times(output: RequestOutput, began: float) -> RequestTimes:
    metrics = output.metrics
    when = (metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time, metrics.finished_time)
    return RequestTimes(
        *(None if moment is None else moment - began for moment in when),
        len(output.prompt_token_ids),
        len(output.outputs[0].token_ids),
    )


def _difference(index: int, questions: Sequence[Question], runs: Sequence[Run], answers: Sequence[Sequence[Answer]]) -> Difference:
    """Describes where one question's answers part first."""
    first = answers[0][index]
    number, other = next((number, run[index]) for number, run in enumerate(answers) if run[index] != first)
    tokens = zip(zip(*first, strict=True), zip(*other, strict=True), strict=False)
    position = next(
        (place for place, (one, two) in enumerate(tokens) if one != two), min(len(first.token_ids), len(other.token_ids))
    )
    said = [f"{runs[run].name}: token {_token(answer, position)}" for run, answer in ((0, first), (number, other))]
    return Difference(f"conversation {index + 1}, about {questions[index].topic}", position, *said)


def _token(answer: Answer, position: int) -> str:
    if position >= len(answer.token_ids):
        return "none"
    token_id = answer.token_ids[position]
    return f"{token_id} at {answer.logprobs[position][token_id].logprob!r}"
