"""octavo.engine.calibration, and what it is for: a simulation that goes as the engine goes."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from engine.tiny_engine import MAX_LEN, NUM_TOKENS, TinyModels, full_attention
from octavo.config import EngineConfig
from octavo.engine import calibration
from octavo.engine.calibration import Shape, calibrate, median_steps, run_shape
from octavo.engine.loading import build_engine
from octavo.errors import ConfigError
from octavo.simulator.fitted_time import TERMS, fit_rates
from octavo.simulator.step_work import StepWork

SHAPES = (Shape(1, 20, 4, 0), Shape(5, 30, 3, 2), Shape(2, 5000, 6, 1))


@pytest.fixture(scope="module")
def models() -> TinyModels:
    return TinyModels()


def test_every_step_is_noted_with_what_it_computed(models: TinyModels) -> None:
    engine = models.engine()
    steps = run_shape(engine, models.parts().spec.windows, SHAPES[1])
    assert (
        sum(work.tokens for work, _ in steps) == engine.stats().num_computed_tokens == 5 * 30 + sum(3 + 2 * i - 1 for i in range(5))
    )
    assert sum(work.answer_tokens for work, _ in steps) == engine.stats().num_generated_tokens
    assert all(seconds > 0 for _, seconds in steps)
    assert engine.on_step is None


def test_prompts_are_cut_to_what_a_sequence_may_have(models: TinyModels) -> None:
    engine = models.engine()
    run_shape(engine, models.parts().spec.windows, SHAPES[2])
    assert engine.stats().num_computed_tokens == 2 * (MAX_LEN - 1)


def test_rounds_repeat_the_same_steps(models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SHAPES", SHAPES)
    begun: list[str] = []
    windows = models.parts().spec.windows
    runs = calibrate(models.engine(), windows, 2, begun.append)
    assert begun == 2 * [shape.name for shape in SHAPES]
    engine = models.engine()
    assert {name: [work for work, _ in run] for name, run in runs.items()} == {
        shape.name: [work for work, _ in run_shape(engine, windows, shape)] for shape in SHAPES
    }


def test_a_disturbed_round_does_not_count() -> None:
    work = StepWork(1, 2, 3, 4, 5)
    assert median_steps([[(work, 1.0)], [(work, 9.0)], [(work, 1.2)]]) == [(work, 1.2)]


@pytest.mark.parametrize("other", [[(StepWork(1, 2, 3, 4, 6), 1.0)], [(StepWork(1, 2, 3, 4, 5), 1.0)] * 2, []])
def test_rounds_of_other_steps_are_refused(other: list[tuple[StepWork, float]]) -> None:
    with pytest.raises(ConfigError, match="memory ran short"):
        median_steps([[(StepWork(1, 2, 3, 4, 5), 1.0)], other])


@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
@pytest.mark.parametrize("num_layer_groups", [1, 2])
def test_a_simulation_takes_the_engines_steps(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch, kv_dtype: str, num_layer_groups: int
) -> None:
    """The same requests, all at once and in a memory too small for them, without a word of time: only then is there one order."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import simulation_vs_reality
    from workloads import Workload

    parts = models.parts() if num_layer_groups == 2 else models.parts(spec=full_attention())
    config = EngineConfig(
        kv_dtype=kv_dtype, kv_memory=f"{250 if kv_dtype == 'fp32' else 80}KiB", max_num_seqs=16, max_num_batched_tokens=64
    )
    source = random.Random(1)
    lengths = [(source.randint(4, 150), source.randint(1, 60)) for _ in range(24)]
    prompts = [
        [1 + index] + [source.randrange(1, NUM_TOKENS) for _ in range(prompt - 1)] for index, (prompt, _) in enumerate(lengths)
    ]
    workload = Workload("short", prompts, [answer for _, answer in lengths])
    real = simulation_vs_reality.run(build_engine(config, *parts), workload)
    seconds = dict.fromkeys(TERMS, 1.0)
    runs = {name: [(StepWork(1, 1, 1, 1, 1), 1.0)] for name in "ab"}
    rates = replace(fit_rates(runs, model="", weights="", kv_dtype=kv_dtype, num_threads=1, processor=""), seconds=seconds)
    simulated = simulation_vs_reality.simulated(parts, config, workload, rates)
    assert real.num_preemptions > 0
    for name in ("num_steps", "num_preemptions", "peak_running"):
        assert getattr(simulated, name) == getattr(real, name), name
