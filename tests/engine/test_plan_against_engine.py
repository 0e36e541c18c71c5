"""What `octavo plan` says of a model, beside an engine that runs it; skipped where its file is not in the cache."""

from pathlib import Path

import pytest

from octavo.models.cache_directory import cache_directory
from octavo.models.packaged_models import PACKAGED_MODELS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_users_and_resident_memory_are_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import plan_vs_reality

    case = plan_vs_reality.CASES[0]
    if not (cache_directory() / "models" / PACKAGED_MODELS[case.model].file_name).exists():
        pytest.skip(f"{case.model} is not in the cache: octavo pull {case.model}")
    outcome = plan_vs_reality.measure(case, 1)
    assert (outcome.users, outcome.preemptions) == (outcome.planned_users, 0)
    assert abs(outcome.error) <= plan_vs_reality.MAX_ERROR
