"""octavo.cli.demo: the report is made of the run's counters, and a difference is not glossed over."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import octavo
from octavo.cli.demo import CHECKED, MAX_MODEL_LEN, TOPICS
from octavo.cli.main import main
from octavo.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput


def stats(*, used_blocks: int) -> SimpleNamespace:
    """Returns engine figures of a moment: a pool of 300 blocks of 16 slots."""
    memory = SimpleNamespace(
        num_blocks=300,
        num_used_blocks=used_blocks,
        num_allocated_slots=16 * used_blocks,
        num_computed_slots=12 * used_blocks,
        num_saved_slots=4 * used_blocks,
    )
    return SimpleNamespace(memory=memory, num_running=3, num_peak_running=31, num_preemptions=2)


class FakeLLM:
    """Answers every conversation with its topic; reports rising and then falling use of blocks."""

    def __init__(self, *, changed_alone: str | None = None):
        self.config = SimpleNamespace(model="fake")
        self.engine = self
        self.num_resets = 0
        self._changed_alone = changed_alone
        self._moments = [stats(used_blocks=count) for count in (100, 250, 200)]
        self._current = self._moments[0]

    def __call__(self, **_settings: Any) -> "FakeLLM":
        return self

    def stats(self) -> SimpleNamespace:
        return self._current

    def reset_prefix_cache(self) -> bool:
        self.num_resets += 1
        return True

    def chat(
        self, conversations: list, params: Any, *, on_progress: Callable[[int, int], None] | None = None
    ) -> list[RequestOutput]:
        if on_progress is None:
            return [self._output(conversations, alone=True)]
        for moment in self._moments:
            self._current = moment
            on_progress(1, len(conversations))
        return [self._output(messages, alone=False) for messages in conversations]

    def _output(self, messages: list[dict[str, str]], *, alone: bool) -> RequestOutput:
        text = messages[-1]["content"]
        differs = alone and self._changed_alone is not None and self._changed_alone in text
        logprobs = [{1: Logprob(-0.5000000001 if differs else -0.5, 1, "x")}]
        choice = CompletionOutput(index=0, text=text, token_ids=[1, 2, 3], logprobs=logprobs, finish_reason="length")
        return RequestOutput("request", None, [0], [choice], RequestMetrics(0.0), num_prefix_hit_tokens=10)


@pytest.fixture
def run_demo(monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[[FakeLLM], tuple[int, str, str]]:
    """Returns a function that runs the demo on a fake and returns exit status, standard output and standard error."""

    def run(fake: FakeLLM) -> tuple[int, str, str]:
        monkeypatch.setitem(vars(octavo), "LLM", fake)
        status = main(["demo"])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("line", "figure"),
    [
        ("conversations held at once, paged", "31"),
        (f"the same bytes reserved for {MAX_MODEL_LEN:,} tokens each would hold", "2"),
        ("KV blocks in use at peak", "250 of 300"),
        ("allocated KV slots that held tokens at peak", "75.0%"),
        ("KV slots saved by sharing at peak", "1,000"),
        ("prompt tokens found in the prefix cache", "320"),
        ("preemptions", "2"),
    ],
)
def test_table_shows_the_counters(run_demo, line: str, figure: str) -> None:
    status, shown, _ = run_demo(FakeLLM())
    assert status == 0
    assert [row.removeprefix(line).strip() for row in shown.splitlines() if row.startswith(line)] == [figure]


def test_ends_with_exact_after_answering_some_alone_from_an_empty_cache(run_demo) -> None:
    fake = FakeLLM()
    _, shown, errors = run_demo(fake)
    assert shown.splitlines()[-1] == "exact: yes"
    assert fake.num_resets == len(CHECKED)
    assert errors == ""  # no bar where there is no terminal


def test_one_differing_bit_is_reported_and_fails(run_demo) -> None:
    topic = TOPICS[CHECKED[1]]
    status, shown, errors = run_demo(FakeLLM(changed_alone=topic))
    assert status == 1
    assert shown.splitlines()[-1] == "exact: no"
    assert topic in errors


def test_there_are_32_conversations_on_different_topics() -> None:
    assert len(set(TOPICS)) == 32
