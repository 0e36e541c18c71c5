"""The charts of a comparison's page.

Owns: what each chart shows. Must not know: colours, fonts, or the page around it.

Kinds of marks: ``run-0`` … for runs; ``waiting``, ``reading``, ``answering`` for a conversation; those of `SLOT_KINDS` for memory.
"""

from collections.abc import Sequence
from dataclasses import astuple

from octavo.comparison.record import Moment, RequestTimes, Run
from octavo.comparison.svg import Drawing, Scale, count_axis, share_bar, time_axis

WIDTH, HALF_WIDTH = 720, 352
SLOT_KINDS = ("slot-tokens", "slot-promised", "slot-unused", "slot-free")


def draw_lanes(run: Run, seconds: float) -> str:
    """Draws each conversation of a run as a line over time: waiting, reading its prompt, answering.

    Args:
        seconds: where the axis ends, the same for all runs.
    """
    height = min(12.0, 260 / max(1, len(run.requests)))
    bottom = 8 + height * len(run.requests)
    drawing = Drawing(HALF_WIDTH, bottom + 24, f"{run.name}: when each conversation waited and was answered")
    scale = Scale(seconds, 6, HALF_WIDTH - 14)
    for index, request in enumerate(sorted(run.requests, key=_first_served)):
        _draw_lane(drawing, scale, request, 4 + index * height, 0.78 * height)
    time_axis(drawing, scale, bottom)
    return drawing.render()


def _first_served(request: RequestTimes) -> tuple[float, float]:
    late = float("inf")
    first_token = late if request.first_token is None else request.first_token
    return (first_token if request.started is None else request.started), first_token


def _draw_lane(drawing: Drawing, scale: Scale, request: RequestTimes, y: float, height: float) -> None:
    end = scale.largest if request.finished is None else request.finished
    first_token = end if request.first_token is None else request.first_token
    started = first_token if request.started is None else request.started
    for begin, stop, kind in (
        (request.arrived, started, "waiting"),
        (started, first_token, "reading"),
        (first_token, end, "answering"),
    ):
        drawing.rect(scale(begin), y, scale(stop) - scale(begin), height, kind)


def draw_running(runs: Sequence[Run]) -> str:
    """Draws the conversations at once of every run over time."""
    drawing = Drawing(WIDTH, 250, "conversations at once over time")
    across = Scale(longest_run_s(runs), 40, WIDTH - 20)
    up = Scale(max(1, *(run.figures.peak_running for run in runs)), 218, 12)
    count_axis(drawing, up, across.start, across.end)
    time_axis(drawing, across, up.start)
    for index, run in enumerate(runs):
        drawing.path(_steps(run.moments, run.figures.seconds, across, up), f"line run-{index}")
    return drawing.render()


def _steps(moments: Sequence[Moment], seconds: float, across: Scale, up: Scale) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    ends = [moment.time_s for moment in moments[1:]] + [seconds]
    for moment, end in zip(moments, ends, strict=False):
        points += [(across(moment.time_s), up(moment.num_running)), (across(end), up(moment.num_running))]
    return [*points, (across(seconds), up(0))]


def draw_slots(runs: Sequence[Run]) -> str:
    """Draws what each run's memory was used for, as parts of a bar."""
    row = 44
    drawing = Drawing(WIDTH, row * len(runs) + 4, "what the KV memory was used for when it was fullest")
    for index, run in enumerate(runs):
        y = index * row
        drawing.text(0, y + 13, run.name, "name")
        if run.figures.slots is not None:
            share_bar(drawing, zip(SLOT_KINDS, astuple(run.figures.slots), strict=True), y + 19)
    return drawing.render()


def draw_bars(runs: Sequence[Run], values: Sequence[float | None], *, title: str, unit: str) -> str:
    """Draws one bar for each run with its value behind it; None where there is none."""
    row = 40
    drawing = Drawing(HALF_WIDTH, row * len(runs) + 4, title)
    scale = Scale(max((value for value in values if value is not None), default=0), 0, HALF_WIDTH - 108)
    for index, (run, value) in enumerate(zip(runs, values, strict=True)):
        y = index * row
        drawing.text(0, y + 13, run.name, "name")
        if value is not None:
            drawing.rect(0, y + 18, max(1.5, scale(value)), 15, f"run-{index}")
            drawing.text(max(1.5, scale(value)) + 6, y + 30, f"{_short(value)} {unit}", "value")
    return drawing.render()


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def longest_run_s(runs: Sequence[Run]) -> float:
    """Returns the seconds of the run that took longest."""
    return max(run.figures.seconds for run in runs)
