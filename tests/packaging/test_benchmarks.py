"""The benchmarks' workloads are the ones that the documents describe, whatever the Python version."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
VOCAB_SIZE = 49152


@pytest.fixture
def workloads(monkeypatch: pytest.MonkeyPatch):
    """Returns the module of the workloads."""
    monkeypatch.syspath_prepend(BENCHMARKS)
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
