"""Steps of many shapes on a running engine, each with its time.

Owns: the shapes, and the recording. Must not know: what is made of the times.

Invariants:
1. The same steps run in every round, so that each has a time in each; the median counts, and a disturbance of one round does not.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from octavo.engine.engine import Engine
from octavo.errors import ConfigError
from octavo.sampling_params import SamplingParams
from octavo.scheduler.batch import ScheduledBatch
from octavo.simulator.step_work import StepWork, WorkCounter

FIRST_TOKEN_ID = 256  # below it lie the control tokens of common vocabularies


@dataclass(frozen=True)
class Shape:
    """Requests that come at the same moment; their answers end one after the other, so that steps of every width run.

    Attributes:
        answer_tokens: of the shortest answer; each next one is ``spread_tokens`` longer.
    """

    num_requests: int
    prompt_tokens: int
    answer_tokens: int
    spread_tokens: int

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"{self.num_requests} × {self.prompt_tokens}"


SHAPES = (
    Shape(1, 64, 32, 0),  # one row
    Shape(4, 128, 16, 4),
    Shape(16, 96, 12, 2),  # decodes beside pieces of prompts
    Shape(48, 48, 12, 1),  # wide steps
    Shape(8, 400, 8, 2),
    Shape(2, 1200, 8, 8),  # long contexts
)


def run_shape(engine: Engine, windows: Sequence[int | None], shape: Shape) -> list[tuple[StepWork, float]]:
    """Runs one shape and returns its steps, each with the seconds that it took. Prompts are cut to what a sequence may have."""
    counter, steps = WorkCounter(windows), []
    source = random.Random(shape.name)
    first_token_id = min(FIRST_TOKEN_ID, engine.vocab_size // 2)
    engine.reset_prefix_cache()
    for index in range(shape.num_requests):
        num_answer_tokens = min(shape.answer_tokens + index * shape.spread_tokens, engine.max_model_len // 2)
        num_prompt_tokens = min(shape.prompt_tokens, engine.max_model_len - num_answer_tokens)
        prompt = [source.randrange(first_token_id, engine.vocab_size) for _ in range(num_prompt_tokens)]
        engine.add_request(prompt, SamplingParams(temperature=0.0, max_tokens=num_answer_tokens, ignore_eos=True, detokenize=False))

    def note(batch: ScheduledBatch, seconds: float) -> None:
        steps.append((counter.count(batch), seconds))

    engine.on_step = note
    try:
        while engine.has_unfinished_requests:
            engine.step()
    finally:
        engine.on_step = None
    return steps


def calibrate(
    engine: Engine, windows: Sequence[int | None], num_rounds: int, on_shape: Callable[[str], None]
) -> dict[str, list[tuple[StepWork, float]]]:
    """Runs all shapes ``num_rounds`` times and returns the steps of each, by its name.

    Args:
        windows: the model's, per layer.
        on_shape: called with a shape's name before it runs.

    Raises:
        ConfigError: memory ran short in one round, so that its steps were others.
    """
    rounds: dict[str, list[list[tuple[StepWork, float]]]] = {shape.name: [] for shape in SHAPES}
    for _ in range(num_rounds):
        for shape in SHAPES:
            on_shape(shape.name)
            rounds[shape.name].append(run_shape(engine, windows, shape))
    return {name: median_steps(runs) for name, runs in rounds.items()}


def median_steps(rounds: Sequence[list[tuple[StepWork, float]]]) -> list[tuple[StepWork, float]]:
    """Returns each step with the median of its times: see invariant 1."""
    first, *others = [[work for work, _ in steps] for steps in rounds]
    if any(other != first for other in others):
        raise ConfigError("one round ran other steps than the first: memory ran short", hint="lower kv_memory, or free memory")
    seconds = zip(*([seconds for _, seconds in steps] for steps in rounds), strict=True)
    return list(zip(first, map(median, seconds), strict=True))
