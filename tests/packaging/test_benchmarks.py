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


def test_shares_of_what_the_machine_can_do(workloads, monkeypatch: pytest.MonkeyPatch) -> None:
    import machine
    import offline
    from octavo.kernels.cpu import MachineRates
    from octavo.models.hf_config import from_hf_config
    from octavo.planner.shipped_models import shipped_models

    spec = from_hf_config(shipped_models()["smollm2-135m"].config)
    layers, head = 30 * 576 * (576 + 2 * 192 + 576 + 3 * 1536), 576 * VOCAB_SIZE
    flop = offline.matrix_flop(spec, workloads.many_requests(VOCAB_SIZE), 14_742)
    assert flop == 2 * ((14_742 + 8_370 - 64) * layers + 8_370 * head)

    probes = iter([MachineRates(20.0, 50.0, 400.0, 0.0), MachineRates(10.0, 100.0, 400.0, 0.0)])
    monkeypatch.setattr(machine, "probe_machine", lambda _num_threads: next(probes))
    limits = machine.Limits(2)
    limits.probe()
    assert limits.rates == MachineRates(20.0, 100.0, 400.0, 0.0)
    reading = offline.Timing("W1", 1.0, 1.0, 1.0, 1, 1, 1.0, read_gb_per_s=15.0, gflop_per_s=None)
    multiplying = offline.Timing("P1024", 1.0, 1.0, 1.0, 1, 1, 1.0, read_gb_per_s=None, gflop_per_s=100.0)
    assert offline.share_of_limit(reading, limits) == 0.75
    assert offline.share_of_limit(multiplying, limits) == 0.25  # of the faster arithmetic


def test_the_readme_shows_the_results() -> None:
    import readme_table

    readme = (BENCHMARKS.parent / "README.md").read_text(encoding="utf-8")
    assert readme_table.replaced(readme) == readme, "run benchmarks/readme_table.py --write"
