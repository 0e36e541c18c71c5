"""The benchmarks' workloads are the ones that the documents describe, and the README shows what was measured."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
VOCAB_SIZE = 49152


@pytest.fixture(autouse=True)
def _import_from_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def workloads():
    """Returns the module of the workloads."""
    import workloads

    return workloads


def test_one_request(workloads) -> None:
    workload = workloads.one_request(VOCAB_SIZE)
    assert [len(prompt) for prompt in workload.prompts] == [64]
    assert workload.output_tokens == [128]


def test_many_requests(workloads) -> None:
    workload = workloads.many_requests(VOCAB_SIZE)
    assert len(workload.prompts) == len(workload.output_tokens) == 64
    assert (workload.num_prompt_tokens, workload.num_output_tokens) == (14_742, 8_370)
    assert all(8 <= len(prompt) <= 1024 for prompt in workload.prompts)
    assert all(8 <= length <= 384 for length in workload.output_tokens)
    assert all(0 <= token < VOCAB_SIZE for prompt in workload.prompts for token in prompt)


def test_long_contexts(workloads) -> None:
    assert [len(prompt) for prompt in workloads.long_prompt(VOCAB_SIZE, num_tokens=1024).prompts] == [1023]
    workload = workloads.long_contexts(VOCAB_SIZE)
    assert workload.is_prefilled and [len(prompt) for prompt in workload.prompts] == [4096] * 16
    assert len({tuple(prompt[:16]) for prompt in workload.prompts}) == 16  # no block is shared


def test_shared_prefix(workloads) -> None:
    workload = workloads.shared_prefix(VOCAB_SIZE)
    assert len(workload.prompts) == 64 and {len(prompt) for prompt in workload.prompts} == {1024 + 64}
    assert len({tuple(prompt[:1024]) for prompt in workload.prompts}) == 1
    assert len({tuple(prompt[1024:1040]) for prompt in workload.prompts}) == 64


def test_the_readme_shows_the_results() -> None:
    import readme_table

    readme = (BENCHMARKS.parent / "README.md").read_text(encoding="utf-8")
    assert readme_table.replaced(readme) == readme, "run benchmarks/readme_table.py --write"
