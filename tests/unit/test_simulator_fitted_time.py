"""octavo.simulator.fitted_time and step_work: what is counted, what a fit finds, and what its file may hold."""

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.sequence import Sequence
from octavo.simulator.fitted_time import TERMS, FittedStepTime, fit, fit_rates, load_rates, run_error
from octavo.simulator.step_time import ModelCosts
from octavo.simulator.step_work import StepWork, WorkCounter

MODEL = ModelCosts(1000, 2000, 8, (None, None, 4), 5, 128, None)
SECONDS = {"steps": 0.004, "tokens": 1e-3, "answer_tokens": 2e-4, "read_slots": 1e-7, "attended_pairs": 3e-8}


def batch(*entries: tuple[int, int, bool]) -> ScheduledBatch:
    """Returns a batch of sequences: computed tokens, scheduled tokens, and whether all that there are."""
    scheduled = ScheduledBatch()
    for index, (start, num_tokens, is_all) in enumerate(entries):
        scheduled.add(Sequence(index, [7] * (start + num_tokens + (not is_all)), 128), start, num_tokens)
    return scheduled


def seconds_of(work: StepWork) -> float:
    return sum(SECONDS[term] * amount for term, amount in zip(TERMS, work, strict=True))


def make_runs(noise: float = 0.0) -> dict[str, list[tuple[StepWork, float]]]:
    """Returns runs whose steps take what `SECONDS` says, times a factor that is off by at most ``noise``."""
    source, runs = random.Random(5), {}
    for name in "abc":
        works = [
            StepWork(1, source.randint(1, 500), source.randint(0, 64), source.randint(0, 10**5), source.randint(0, 10**6))
            for _ in range(40)
        ]
        runs[name] = [(work, seconds_of(work) * source.uniform(1 - noise, 1 + noise)) for work in works]
    return runs


def rates(runs=None):
    return fit_rates(runs or make_runs(0.1), model="tiny", weights="fp32", kv_dtype="bf16", num_threads=2, processor="P")


def test_decodes_read_slots_and_pieces_of_prompts_attend() -> None:
    counted = WorkCounter(MODEL.windows).count(batch((9, 1, True), (0, 3, False)))
    # One token sees 10 in two layers and 4 in the windowed one; the middle of three sees 2 in each.
    assert counted == StepWork(1, 4, 1, 2 * 10 + 4, 3 * 3 * 2)


def test_a_fit_finds_the_seconds_that_the_steps_have() -> None:
    assert fit(make_runs()) == pytest.approx(SECONDS)


def test_a_term_that_never_occurs_is_zero() -> None:
    runs = {"a": [(StepWork(1, number, 0, 0, 0), 2.0 + number) for number in (1, 2, 3)]}
    assert fit(runs) == pytest.approx({**dict.fromkeys(TERMS, 0.0), "steps": 2.0, "tokens": 1.0})


def test_no_amount_takes_less_than_no_time() -> None:
    works = [StepWork(1, tokens, answers, 0, 0) for tokens, answers in ((1, 1), (2, 5), (3, 2), (4, 9), (9, 4))]
    seconds = fit({"a": [(work, 5.0 + work.tokens - 0.3 * work.answer_tokens) for work in works]})
    assert seconds["answer_tokens"] == 0.0
    assert seconds["steps"] > 0 and seconds["tokens"] > 0


def test_a_run_is_judged_by_a_fit_that_has_not_seen_it() -> None:
    runs = make_runs()
    runs["slow"] = [(work, 2 * measured) for work, measured in make_runs()["a"]]
    assert rates(runs).run_errors["slow"] == pytest.approx(-0.5)
    assert rates(runs).largest_run_error >= 0.5


def test_the_error_of_a_step_is_the_median() -> None:
    assert rates(make_runs()).step_error_ratio == pytest.approx(0, abs=1e-9)
    assert 0.03 < rates(make_runs(0.1)).step_error_ratio < 0.07  # the median of what is even between 0 and 0.1


def test_a_run_takes_its_steps_together() -> None:
    run = [(StepWork(1, 1, 0, 0, 0), 1.0), (StepWork(1, 3, 0, 0, 0), 3.0)]
    assert run_error(run, {**SECONDS, "steps": 0.0, "tokens": 2.0}) == 1.0


def test_fitted_seconds_make_a_steps_time() -> None:
    step_time = FittedStepTime(MODEL, rates(make_runs()))
    step = batch((9, 1, True), (0, 3, False))
    assert step_time.seconds(step) == pytest.approx(seconds_of(WorkCounter(MODEL.windows).count(step)))
    assert step_time.seconds(step, 10) - step_time.seconds(step) == pytest.approx(2 * 10 * 3 * SECONDS["read_slots"])


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    rates().save(tmp_path / "rates.json")
    assert load_rates(tmp_path / "rates.json") == rates()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": {**SECONDS, "tokens": -1}}, "at least 0"),
        ({"seconds": {**SECONDS, "tokens": float("nan")}}, "at least 0"),
        ({"seconds": {**SECONDS, "tokens": "1"}}, "at least 0"),
        ({"seconds": {"steps": 1.0}}, "exactly"),
        ({"seconds": dict.fromkeys(SECONDS, 0.0)}, "take time"),
        ({"run_errors": {}}, "at least one run"),
        ({"run_errors": 3}, "does not hold step times"),
        ({"num_steps": 0}, "at least 1"),
        ({"num_threads": "2"}, "at least 1"),
        ({"more": 1}, "names are not"),
    ],
)
def test_a_file_with_something_else_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(asdict(rates()) | change), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_rates(path)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"7"])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "rates.json"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"step_times=.*rates\.json"):
        load_rates(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_rates(tmp_path / "none.json")
