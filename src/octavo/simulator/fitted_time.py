"""Step times that follow from steps of the real engine.

Owns: the fit, its error, and the file that both are kept in. Must not know: how the steps came about.

A step takes the sum of its amounts (`StepWork`), each times a number of seconds. The numbers are those with the least squares of
the relative errors; amounts whose number would be negative are left out, the most negative first.

Invariants:
1. The error of a run is that of a fit that has not seen it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import ConfigError
from octavo.scheduler.batch import ScheduledBatch
from octavo.simulator.step_time import ModelCosts
from octavo.simulator.step_work import StepWork, WorkCounter

TERMS = StepWork._fields
TERM_UNITS = {  # term -> what its seconds are for, the unit in which they are shown, and how many of it are a second
    "steps": ("a step, whatever is in it", "ms", 1e3),
    "tokens": ("a token", "ms", 1e3),
    "answer_tokens": ("a token that is sampled", "ms", 1e3),
    "read_slots": ("reading K and V of one token in one layer", "ns", 1e9),
    "attended_pairs": ("a prompt's query and a key in one layer", "ns", 1e9),
}
Run = Sequence[tuple[StepWork, float]]  # steps, each with its seconds


@dataclass(frozen=True)
class FittedRates:
    """Seconds for each amount of a step, and how well they explain the steps that they come from.

    Attributes:
        model, weights, kv_dtype, num_threads, processor: what was measured.
        seconds: for each of `TERMS`.
        num_steps: steps that the fit has seen.
        step_error_ratio: median over the steps of how far the fit is off.
        run_errors: for each run how far its time, as fitted to the other runs, is above the measured one, as a share of it.
    """

    model: str
    weights: str
    kv_dtype: str
    num_threads: int
    processor: str
    seconds: dict[str, float]
    num_steps: int
    step_error_ratio: float
    run_errors: dict[str, float]

    @property
    def largest_run_error(self) -> float:
        """The largest of the runs' errors, whatever its sign."""
        return max(map(abs, self.run_errors.values()))

    def describe(self) -> str:
        """Returns in words what was fitted and how far it is off."""
        return (
            f"fitted to {self.num_steps:,} steps of {self.model} ({self.weights}, {self.num_threads} threads, {self.processor}); "
            f"half of them are within {self.step_error_ratio:.1%}, runs left out of the fit within {self.largest_run_error:.1%}"
        )

    def save(self, path: Path) -> None:
        """Writes them to a file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


class FittedStepTime:
    """The time of steps of one model, from fitted rates."""

    def __init__(self, model: ModelCosts, rates: FittedRates):
        self._counter = WorkCounter(model.windows)
        self._seconds = tuple(rates.seconds[term] for term in TERMS)
        self._slot_s = rates.seconds["read_slots"]
        self._num_layers = len(model.windows)

    def seconds(self, batch: ScheduledBatch, num_moved_slots: int = 0) -> float:
        """Returns the duration of a step; a moved slot is read and written in every layer."""
        work = self._counter.count(batch)
        step_s = sum(amount * seconds for amount, seconds in zip(work, self._seconds, strict=True))
        return step_s + 2 * num_moved_slots * self._num_layers * self._slot_s


def fit_rates(runs: Mapping[str, Run], *, model: str, weights: str, kv_dtype: str, num_threads: int, processor: str) -> FittedRates:
    """Returns what explains the runs best, and its errors; the other arguments say what ran."""
    seconds = fit(runs)
    errors = step_errors(runs, seconds)
    return FittedRates(
        model=model,
        weights=weights,
        kv_dtype=kv_dtype,
        num_threads=num_threads,
        processor=processor,
        seconds=seconds,
        num_steps=len(errors),
        step_error_ratio=float(np.median(abs(errors))),
        run_errors=left_out_errors(runs),
    )


def fit(runs: Mapping[str, Run]) -> dict[str, float]:
    """Returns the seconds of each term that explain the steps of all runs best."""
    work, measured = _arrays([step for run in runs.values() for step in run])
    relative = work / measured[:, np.newaxis]
    lengths = np.linalg.norm(relative, axis=0)
    used = np.flatnonzero(lengths).tolist()
    relative[:, used] /= lengths[used]  # slots are counted in millions, steps in ones
    while True:
        solution = np.linalg.lstsq(relative[:, used], np.ones(len(measured)), rcond=None)[0]
        if (solution >= 0).all():
            break
        used.pop(int(solution.argmin()))
    found = dict(zip(used, (solution / lengths[used]).tolist(), strict=True))
    return {name: found.get(index, 0.0) for index, name in enumerate(TERMS)}


def step_errors(runs: Mapping[str, Run], seconds: Mapping[str, float]) -> np.ndarray:
    """Returns for each step how far its fitted time is above the measured one, as a share of it."""
    work, measured = _arrays([step for run in runs.values() for step in run])
    return work @ np.array([seconds[term] for term in TERMS]) / measured - 1


def run_error(run: Run, seconds: Mapping[str, float]) -> float:
    """Returns how far a run's fitted time is above the measured one, as a share of it."""
    work, measured = _arrays(run)
    return float((work @ np.array([seconds[term] for term in TERMS])).sum() / measured.sum() - 1)


def left_out_errors(runs: Mapping[str, Run]) -> dict[str, float]:
    """Returns each run's error as invariant 1 has it."""
    return {name: run_error(run, fit({other: runs[other] for other in runs if other != name})) for name, run in runs.items()}


def _arrays(steps: Run) -> tuple[np.ndarray, np.ndarray]:
    return np.array([work for work, _ in steps], float), np.array([seconds for _, seconds in steps])


def load_rates(path: Path) -> FittedRates:
    """Returns the rates that a file holds.

    Raises:
        ConfigError: the file cannot be read, or it is not one that `FittedRates.save` wrote.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"step_times={str(path)!r} cannot be read: {error}") from error
    try:
        return _checked(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"step_times={str(path)!r} does not hold step times: {error}", hint="octavo bench machine MODEL --output writes them"
        ) from error


def _checked(record: Any) -> FittedRates:
    if not isinstance(record, dict) or record.keys() != {field.name for field in fields(FittedRates)}:
        raise ValueError("its names are not those of fitted step times")
    if record["seconds"].keys() != set(TERMS) or not record["run_errors"]:
        raise ValueError(f"seconds must have exactly {', '.join(TERMS)}, run_errors at least one run")
    figures = [*record["seconds"].values(), *map(abs, record["run_errors"].values()), record["step_error_ratio"]]
    if not all(isinstance(figure, int | float) and 0 <= figure < math.inf for figure in figures):
        raise ValueError("a figure is no number of at least 0")
    if not sum(record["seconds"].values()) > 0:
        raise ValueError("a step must take time")
    if not all(isinstance(record[name], int) and record[name] > 0 for name in ("num_steps", "num_threads")):
        raise ValueError("num_steps and num_threads must be whole numbers of at least 1")
    return FittedRates(**record)
