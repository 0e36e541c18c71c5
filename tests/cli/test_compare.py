"""octavo.cli.compare: a table, a page, and an exit status that tells."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import octavo.comparison.measuring
import octavo.engine.loading
from octavo.cli.main import main
from octavo.comparison.record import Comparison, Difference, Moment, RequestTimes, Run, Slots, make_figures


def make_run(name: str, num_running: int) -> Run:
    requests = (RequestTimes(0.0, 0.5, 1.0, 2.0, 10, 5),)
    moments = (Moment(0.0, num_running, 1, Slots(0.5, 0.2, 0.2, 0.1)),)
    return Run(name, "as it is", make_figures(requests, moments, 2.0), requests, moments, {"preemptions": 3})


COMPARISON = Comparison("T", "All of it.", (), "octavo compare", {}, (make_run("one", 2), make_run("two", 9)), 4, 4, None)


@pytest.fixture
def run_compare(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path):
    """Returns a function that runs the command on a result made beforehand."""
    seen = SimpleNamespace(page=tmp_path / "page.html")

    def compare_memories(parts, config, conversations, command, on_progress):
        seen.config, seen.conversations, seen.command = config, conversations, command
        on_progress("one", 1)
        return seen.result

    monkeypatch.setattr(octavo.engine.loading, "load_parts", lambda config: None)
    monkeypatch.setattr(octavo.comparison.measuring, "compare_memories", compare_memories)

    def run(*arguments: str, result: Comparison = COMPARISON):
        seen.result = result
        status = main(["compare", *arguments, "--html", str(seen.page)])
        return status, capsys.readouterr(), seen

    return run


def test_prints_the_table_and_writes_the_page(run_compare) -> None:
    status, printed, seen = run_compare()
    assert status == 0 and printed.err == ""
    rows = [line.split() for line in printed.out.splitlines()]
    assert ["conversations", "at", "once,", "most", "2", "9"] in rows
    assert printed.out.splitlines()[-2:] == ["exact: yes (all 4 answers are the same in every run)", f"page: {seen.page}"]
    assert seen.page.read_text().startswith("<!doctype html>")


def test_prints_json(run_compare) -> None:
    _, printed, _ = run_compare("--json")
    record = json.loads(printed.out)
    assert record["schema"] == "octavo-compare-1" and record["exact"] is True
    assert [run["figures"]["peak_running"] for run in record["runs"]] == [2, 9]


def test_options_reach_the_engine_and_the_conversations(run_compare) -> None:
    _, _, seen = run_compare(
        "gemma3-270m", "--conversations", "5", "--kv-memory", "64MiB", "--max-model-len", "512", "--num-threads", "1"
    )
    assert (seen.config.model, seen.config.kv_memory, seen.config.max_model_len) == ("gemma3-270m", "64MiB", 512)
    assert seen.config.num_threads == 1 and len(seen.conversations) == 5


def test_a_difference_fails(run_compare) -> None:
    difference = Difference("conversation 1", 3, "one: token 4", "two: token 5")
    status, printed, seen = run_compare(result=replace(COMPARISON, num_equal=3, difference=difference))
    assert status == 1
    assert (
        "exact: no (3 of 4 answers are the same in every run; conversation 1 parts at 3: one: token 4 | two: token 5)"
        in printed.out
    )
    assert "error: the answers came out differently" in printed.err
    assert seen.page.exists()
