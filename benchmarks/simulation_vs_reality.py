"""Simulates W64 (see `workloads.py`), then runs it: sequences at once and throughput of both, side by side.

Usage: python benchmarks/simulation_vs_reality.py [--model NAME] [--weights FORMAT] [--kv-memory SIZE …] [--num-threads N]
       [--output FILE]

The step times are fitted to the runs of `octavo bench machine`, which have other numbers of requests, other lengths and all the
memory they want. Rounds of these and runs of W64 take turns, so that a machine whose speed drifts is the same for both. Prints
a table, and one line of JSON last; the exit status is 1 if a figure is more than 10 % off.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass

from octavo import SamplingParams
from octavo.config import DEFAULT_MODEL, WEIGHT_FORMATS, EngineConfig
from octavo.engine.calibration import SHAPES, median_steps, run_shape
from octavo.engine.engine import Engine
from octavo.engine.loading import ModelParts, build_engine, load_parts
from octavo.kernels.cpu_count import default_num_threads
from octavo.kernels.processor import processor_name
from octavo.simulator.fitted_time import FittedRates, FittedStepTime, fit_rates
from octavo.simulator.report import Report
from octavo.simulator.settings import SimulationSettings, simulate
from octavo.simulator.step_time import model_costs
from reporting import add_output_argument, save
from workloads import Workload, many_requests

MAX_ERROR = 0.1


@dataclass(frozen=True)
class Figures:
    """What a run comes to; ``mean_running`` is over time."""

    mean_running: float
    peak_running: int
    output_tokens_per_s: float
    num_steps: int
    num_preemptions: int


@dataclass(frozen=True)
class Outcome:
    """One memory's figures, simulated and real."""

    kv_memory: str
    simulated: Figures
    real: Figures

    @property
    def errors(self) -> dict[str, float]:
        """By how much the simulated figures are above the real ones."""
        names = ("mean_running", "peak_running", "output_tokens_per_s")
        return {name: getattr(self.simulated, name) / getattr(self.real, name) - 1 for name in names}


def run(engine: Engine, workload: Workload) -> Figures:
    """Runs the workload on an engine that did nothing before."""
    before, running_s, peak = engine.stats(), 0.0, 0
    started = time.perf_counter()
    for prompt, length in zip(workload.prompts, workload.output_tokens, strict=True):
        engine.add_request(prompt, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False))
    while engine.has_unfinished_requests:
        began = time.perf_counter()
        deltas = engine.step()
        num_running = engine.stats().num_running + sum(delta.finish_reason is not None for delta in deltas)
        running_s += num_running * (time.perf_counter() - began)
        peak = max(peak, num_running)
    elapsed_s = time.perf_counter() - started
    stats = engine.stats()
    return Figures(
        mean_running=running_s / elapsed_s,
        peak_running=peak,
        output_tokens_per_s=workload.num_output_tokens / elapsed_s,
        num_steps=stats.num_steps - before.num_steps,
        num_preemptions=stats.num_preemptions - before.num_preemptions,
    )


def simulated(parts: ModelParts, config: EngineConfig, workload: Workload, rates: FittedRates) -> Figures:
    """Simulates the workload with the engine's settings."""
    settings = {name: getattr(config, name) for name in ("kv_dtype", "block_size", "max_num_seqs", "max_num_batched_tokens")}
    costs = model_costs(parts.spec, weight_bits=16, kv_dtype=config.kv_dtype)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
        for prompt, length in zip(workload.prompts, workload.output_tokens, strict=True):
            # Of random prompts two may begin with the same token; further they do not agree.
            request = {
                "arrival_s": 0,
                "prompt_tokens": len(prompt),
                "output_tokens": length,
                "prefix": prompt[0],
                "prefix_tokens": 1,
            }
            trace.write(json.dumps(request) + "\n")
        trace.flush()
        report: Report = simulate(
            SimulationSettings(trace=trace.name, kv_memory=str(config.kv_memory), **settings), costs, FittedStepTime(costs, rates)
        )
    return Figures(report.mean_running, report.peak_running, report.output_tokens_per_s, report.num_steps, report.num_preemptions)


def measure(arguments: argparse.Namespace) -> tuple[FittedRates, list[Outcome]]:
    """Fits, runs and simulates."""
    config = EngineConfig(model=arguments.model, weights=arguments.weights, num_threads=arguments.num_threads)
    parts = load_parts(config)
    configs = [EngineConfig(**(asdict(config) | {"kv_memory": size})) for size in arguments.kv_memory]
    engines = [build_engine(each, *parts) for each in configs]
    calibrated = build_engine(config, *parts)
    workload = many_requests(calibrated.vocab_size)
    rounds: list[list] = []
    real: list[Figures] = []

    def calibrate() -> None:
        rounds.append([run_shape(calibrated, parts.spec.windows, shape) for shape in SHAPES])

    run_shape(calibrated, parts.spec.windows, SHAPES[0])
    calibrate()
    for engine in engines:
        real.append(run(engine, workload))
        calibrate()
    rates = fit_rates(
        {shape.name: median_steps([done[index] for done in rounds]) for index, shape in enumerate(SHAPES)},
        model=parts.files.name,
        weights=config.weights,
        kv_dtype=config.kv_dtype,
        num_threads=config.num_threads or default_num_threads(),
        processor=processor_name(),
    )
    outcomes = [
        Outcome(str(each.kv_memory), simulated(parts, each, workload, rates), figures)
        for each, figures in zip(configs, real, strict=True)
    ]
    return rates, outcomes


def print_table(rates: FittedRates, outcomes: list[Outcome]) -> None:
    """Prints the figures for people."""
    print(f"step times {rates.describe()}")
    for name, error in rates.run_errors.items():
        print(f"  {name:<12}{error:+7.1%}")
    for outcome in outcomes:
        print(f"\nW64 in {outcome.kv_memory:<16}{'simulated':>12}{'real':>12}{'differs':>10}")
        for name, error in outcome.errors.items():
            values = (getattr(figures, name) for figures in (outcome.simulated, outcome.real))
            print(f"  {name:<21}" + "".join(f"{value:12.2f}" for value in values) + f"{error:+10.1%}")
        for name in ("num_steps", "num_preemptions"):
            print(f"  {name:<21}{getattr(outcome.simulated, name):12}{getattr(outcome.real, name):12}")


def main() -> None:
    """Measures, prints; the exit status is 1 if a simulation was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--weights", default="auto", choices=WEIGHT_FORMATS)
    parser.add_argument("--kv-memory", nargs="+", default=["1GiB", "96MiB"])
    parser.add_argument("--num-threads", type=int, default=None)
    add_output_argument(parser)
    arguments = parser.parse_args()
    rates, outcomes = measure(arguments)
    print_table(rates, outcomes)
    records = [asdict(outcome) | {"errors": outcome.errors} for outcome in outcomes]
    save("simulation_vs_reality", {"step_times": asdict(rates), "outcomes": records}, arguments.output)
    sys.exit(any(abs(error) > MAX_ERROR for outcome in outcomes for error in outcome.errors.values()))


if __name__ == "__main__":
    main()
