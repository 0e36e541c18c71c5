"""A comparison in words and figures, for the terminal and the page alike.

Owns: which figures are shown, in which order, under which names. Must not know: markup.
"""

from collections.abc import Callable
from dataclasses import dataclass

from octavo.comparison.record import Comparison, Figures, Run, Spread


@dataclass(frozen=True)
class Headline:
    """One figure of the first and the last run.

    Attributes:
        gain: how many times better the last run is; None where nothing can be divided.
    """

    name: str
    first: str
    last: str
    gain: float | None


def figure_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Returns the table: the name of each figure, and its value in every run; figures that no run has are left out."""
    cells: dict[str, Callable[[Run], str]] = {
        "conversations at once, most": lambda run: f"{run.figures.peak_running}",
        "conversations at once, mean": lambda run: f"{run.figures.mean_running:.1f}",
        "wait in the queue, mean": lambda run: _seconds(run.figures.queue),
        "time to first token, mean": lambda run: _seconds(run.figures.ttft),
        "time to first token, 99 of 100": lambda run: _seconds(run.figures.ttft, "p99_ms"),
        "time between tokens, mean": lambda run: _milliseconds(run.figures.gap),
        "answer tokens per second": lambda run: f"{run.figures.answer_tokens_per_s:.1f}",
        "the whole run": lambda run: f"{run.figures.seconds:.1f} s",
        "KV slots when fullest: hold a token": lambda run: _share(run.figures, "tokens"),
        "KV slots when fullest: reserved for a later token": lambda run: _share(run.figures, "promised"),
        "KV slots when fullest: allocated and empty": lambda run: _share(run.figures, "unused"),
        "KV slots when fullest: free": lambda run: _share(run.figures, "free"),
        "prompt tokens found in the prefix cache": lambda run: _count(run, "prompt_tokens_found_in_cache"),
        "preemptions": lambda run: _count(run, "preemptions"),
        "answers that failed": lambda run: ", ".join(f"{count} × {why}" for why, count in run.errors.items()) or "–",
    }
    rows = [(name, [cell(run) for run in comparison.runs]) for name, cell in cells.items()]
    return [(name, values) for name, values in rows if set(values) != {"–"}]


def headlines(comparison: Comparison) -> list[Headline]:
    """Returns the few figures that matter most, of the first run and the last."""
    first, last = comparison.runs[0].figures, comparison.runs[-1].figures
    shown = [
        Headline(
            "conversations at once", f"{first.peak_running}", f"{last.peak_running}", _ratio(last.peak_running, first.peak_running)
        )
    ]
    if first.ttft is not None and last.ttft is not None:
        gain = _ratio(first.ttft.mean_ms, last.ttft.mean_ms)
        shown.append(Headline("mean time to first token", _seconds(first.ttft), _seconds(last.ttft), gain))
    rates = first.answer_tokens_per_s, last.answer_tokens_per_s
    shown.append(Headline("answer tokens per second", f"{rates[0]:.0f}", f"{rates[1]:.0f}", _ratio(rates[1], rates[0])))
    return shown


def verdict(comparison: Comparison) -> str:
    """Returns whether the answers were the same, and where they part first."""
    if comparison.is_exact:
        return f"exact: yes (all {comparison.num_compared} answers are the same in every run)"
    found = f"exact: no ({comparison.num_equal} of {comparison.num_compared} answers are the same in every run"
    difference = comparison.difference
    if difference is None:
        return f"{found})"
    return f"{found}; {difference.where} parts at {difference.position}: {difference.first} | {difference.second})"


def _ratio(larger: float, smaller: float) -> float | None:
    return larger / smaller if smaller else None


def _seconds(spread: Spread | None, which: str = "mean_ms") -> str:
    if spread is None:
        return "–"
    value = getattr(spread, which) / 1e3
    return f"{value:.1f} s" if value >= 1 else f"{1e3 * value:.0f} ms"


def _milliseconds(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.mean_ms:.1f} ms"


def _share(figures: Figures, kind: str) -> str:
    return "–" if figures.slots is None else f"{getattr(figures.slots, kind):.1%}"


def _count(run: Run, name: str) -> str:
    return f"{run.counters[name]:,}" if name in run.counters else "–"
