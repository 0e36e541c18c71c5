"""What a comparison found out: plain data, as the table, the page and the JSON show it.

Owns: the records, and the figures that follow from them. Must not know: how anything was measured, or how it is shown.

Times are seconds from the beginning of a run, unless a name says otherwise.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

SCHEMA_VERSION = 1
MAX_MOMENTS = 240  # kept of a run: more than a chart has room for


@dataclass(frozen=True)
class RequestTimes:
    """One conversation's way through a run.

    Attributes:
        arrived: when it was asked for.
        started: when its first step ended waiting; None where that cannot be seen from outside.
        first_token, finished: None if the answer failed.
    """

    arrived: float
    started: float | None
    first_token: float | None
    finished: float | None
    num_prompt_tokens: int | None
    num_answer_tokens: int


@dataclass(frozen=True)
class Slots:
    """What a KV memory's slots are used for, as shares of the whole.

    Attributes:
        tokens: hold a token's K and V.
        promised: reserved for a token that their sequence will have later.
        unused: reserved, and never used; or behind the last token of a block.
        free: nobody has them.
    """

    tokens: float
    promised: float
    unused: float
    free: float


@dataclass(frozen=True)
class Moment:
    """A run at one moment; ``slots`` is None where the memory cannot be seen."""

    time_s: float
    num_running: int
    num_waiting: int
    slots: Slots | None


@dataclass(frozen=True)
class Spread:
    """Mean and percentiles of times, in milliseconds."""

    mean_ms: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Figures:
    """One run in numbers.

    Attributes:
        mean_running: conversations at once, the mean over the whole run.
        queue: from arrival until the first step.
        gap: between tokens, for each conversation its mean.
        slots: at the moment at which the most of them held a token.
    """

    seconds: float
    peak_running: int
    mean_running: float
    queue: Spread | None
    ttft: Spread | None
    gap: Spread | None
    answer_tokens_per_s: float
    slots: Slots | None


@dataclass(frozen=True)
class Run:
    """One side of a comparison.

    Attributes:
        name: short, for charts.
        description: what was different in this run.
        counters: further figures by name.
        errors: why answers did not come, and how many.
    """

    name: str
    description: str
    figures: Figures
    requests: tuple[RequestTimes, ...]
    moments: tuple[Moment, ...]
    counters: dict[str, int]
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """The first place where two runs' answers part.

    Attributes:
        where: which conversation.
        position: of the first token, or character, that is not the same.
        first, second: the two runs' names, each with what it said there.
    """

    where: str
    position: int
    first: str
    second: str


@dataclass(frozen=True)
class Comparison:
    """The whole result.

    Attributes:
        title: what was compared.
        summary: the same in a sentence or two.
        notes: how it was measured.
        command: what was typed to make it.
        settings: what all runs had in common, by name.
        num_compared: answers that were compared.
        num_equal: those that were the same in every run.
    """

    title: str
    summary: str
    notes: tuple[str, ...]
    command: str
    settings: dict[str, str]
    runs: tuple[Run, ...]
    num_compared: int
    num_equal: int
    difference: Difference | None

    @property
    def is_exact(self) -> bool:
        """Whether every run gave the same answers."""
        return self.num_equal == self.num_compared > 0

    def as_json(self) -> dict[str, Any]:
        """Returns the record under stable names."""
        return {"schema": f"octavo-compare-{SCHEMA_VERSION}", "exact": self.is_exact, **dataclasses.asdict(self)}


def make_figures(requests: Sequence[RequestTimes], moments: Sequence[Moment], seconds: float) -> Figures:
    """Returns a run's figures.

    Args:
        moments: in order of time; each holds until the next one.
        seconds: how long the run took.
    """
    done = [request for request in requests if request.finished is not None and request.first_token is not None]
    gaps = [(r.finished - r.first_token) / (r.num_answer_tokens - 1) for r in done if r.num_answer_tokens > 1]
    ends = [moment.time_s for moment in moments[1:]] + [seconds]
    running_s = sum(moment.num_running * (end - moment.time_s) for moment, end in zip(moments, ends, strict=False))
    slots = [moment.slots for moment in moments if moment.slots is not None]
    return Figures(
        seconds=seconds,
        peak_running=max((moment.num_running for moment in moments), default=0),
        mean_running=running_s / seconds,
        queue=make_spread([request.started - request.arrived for request in requests if request.started is not None]),
        ttft=make_spread([request.first_token - request.arrived for request in done]),
        gap=make_spread(gaps),
        answer_tokens_per_s=sum(request.num_answer_tokens for request in done) / seconds,
        slots=max(slots, key=lambda used: used.tokens, default=None),
    )


def make_spread(seconds: Sequence[float]) -> Spread | None:
    """Returns the mean and percentiles of some times, each percentile a time that occurred; None if there is none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    p50, p99 = (ordered[max(0, -(-share * len(ordered) // 100) - 1)] for share in (50, 99))
    return Spread(1e3 * mean(ordered), 1e3 * p50, 1e3 * p99)


def thin_moments(moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """Returns at most `MAX_MOMENTS` of the moments, evenly chosen, the first and the last among them."""
    if len(moments) <= MAX_MOMENTS:
        return tuple(moments)
    last = len(moments) - 1
    return tuple(moments[index * last // (MAX_MOMENTS - 1)] for index in range(MAX_MOMENTS))
