"""``octavo simulate``: what a machine would do with a workload, without running a model.

Owns: the choice of model and machine, and how reports are shown. Must not know: how anything is simulated.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from octavo.cli.options import FiniteRange, given_settings, settings_options, with_options
from octavo.cli.simulate_chart import draw_simulation
from octavo.cli.terminal import progress_bar, working
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.planner.chart import make_figure
from octavo.simulator.fitted_time import FittedRates, FittedStepTime, load_rates
from octavo.simulator.memories import ALLOCATORS, PAGED
from octavo.simulator.report import Report, Spread
from octavo.simulator.settings import SimulationSettings, simulate
from octavo.simulator.step_time import A100_40GB, OPT_13B, MachineRates, ModelCosts, Roofline, model_costs

PAPER_MODEL, PAPER_MACHINE, THIS_MACHINE = "opt-13b", "a100-40gb", "this"
ENGINE = EngineConfig()
DEFAULT_WEIGHT_BITS = 16.0
ROOFLINE_OPTIONS = {  # option -> the rate that it replaces, and its unit
    "bandwidth_gb_per_s": ("bytes_per_s", 1e9),
    "tflops": ("flop_per_s", 1e12),
    "step_overhead_ms": ("step_overhead_s", 1e-3),
    "sequence_overhead_ms": ("sequence_overhead_s", 1e-3),
}


@with_options(*settings_options(SimulationSettings, skip=["allocator"]))
@click.command("simulate")
@click.argument("model", default=PAPER_MODEL)
@click.option(
    "--allocator",
    "allocators",
    multiple=True,
    type=click.Choice(ALLOCATORS),
    default=[PAGED],
    show_default=True,
    help="How KV memory is given to sequences. Give it several times to compare.",
)
@click.option(
    "--machine",
    type=click.Choice([PAPER_MACHINE, THIS_MACHINE]),
    help=f"Whose rates to start from; {THIS_MACHINE} measures the processor for a second.  [default: {PAPER_MACHINE}]",
)
@click.option(
    "--step-times",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Times of real steps of MODEL, instead of a machine: a file that `octavo bench machine MODEL --output` wrote.",
)
@click.option("--bandwidth-gb-per-s", type=FiniteRange(min=0, min_open=True), help="Memory bandwidth, in the machine's place.")
@click.option("--tflops", type=FiniteRange(min=0, min_open=True), help="Arithmetic, in the machine's place.")
@click.option("--step-overhead-ms", type=FiniteRange(min=0), help="Time added to every step.")
@click.option("--sequence-overhead-ms", type=FiniteRange(min=0), help="Time added to a step for each sequence in it.")
@click.option("--weight-bits", type=FiniteRange(min=0, min_open=True), help="Bits per weight.  [default: 16]")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Also write a chart: a .png or .svg file.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object for each allocator, instead of a table.")
def command(
    model: str,
    allocators: tuple[str, ...],
    machine: str | None,
    step_times: Path | None,
    weight_bits: float | None,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Simulate serving MODEL: the real scheduler and memory, under a virtual clock.

    MODEL is opt-13b, as in the PagedAttention paper, or whatever `octavo serve` takes; of it only the description is used.
    """
    if plot is not None:
        make_figure(plot)  # before the work: its name may be wrong
    settings = _settings(model, options)
    fitted = _read_step_times(step_times, options | {"machine": machine, "weight_bits": weight_bits})
    costs = _read_costs(model, weight_bits or DEFAULT_WEIGHT_BITS, settings, fitted)
    step_time = FittedStepTime(costs, fitted) if fitted else Roofline(costs, _given_rates(_read_rates(machine), options))
    reports = {}
    for allocator in dict.fromkeys(allocators):
        with progress_bar("requests") as bar:
            task = bar.add_task(allocator, total=_num_requests(settings))
            reports[allocator] = simulate(
                replace(settings, allocator=allocator),
                costs,
                step_time,
                lambda num_finished, bar=bar, task=task: bar.update(task, completed=num_finished),
            )
    if plot is not None:
        draw_simulation(reports, f"{model}, {settings.kv_memory} of KV memory", plot)
    if as_json:
        errors = {"step_time_error": _step_time_error(fitted)}
        click.echo(json.dumps([{"allocator": allocator, **asdict(report), **errors} for allocator, report in reports.items()]))
    else:
        _print_table(reports)
        click.echo(f"\nstep times: {fitted.describe() if fitted else 'a roofline, not fitted to any engine'}")


def _settings(model: str, options: dict[str, Any]) -> SimulationSettings:
    """Returns the settings that the user gave; a model of this engine has the engine's token budget if none is given."""
    given = given_settings(SimulationSettings, options)
    if model != PAPER_MODEL:
        given.setdefault("max_num_batched_tokens", max(ENGINE.max_num_batched_tokens, given.get("max_num_seqs", 0)))
    return SimulationSettings(**given)


def _read_step_times(path: Path | None, options: dict[str, Any]) -> FittedRates | None:
    if path is None:
        return None
    for name in ("machine", "weight_bits", *ROOFLINE_OPTIONS):
        if options[name] is not None:
            raise ConfigError(f"step_times and {name} contradict each other", hint="give one of them")
    return load_rates(path)


def _step_time_error(fitted: FittedRates | None) -> dict[str, float] | None:
    return {"step_ratio": fitted.step_error_ratio, "run_ratio": fitted.largest_run_error} if fitted else None


def _read_costs(model: str, weight_bits: float, settings: SimulationSettings, fitted: FittedRates | None) -> ModelCosts:
    kv_dtype = settings.kv_dtype
    if model == PAPER_MODEL and fitted is not None:
        raise ConfigError(f"the step times are those of {fitted.model}, not of {PAPER_MODEL}", hint=f"simulate {fitted.model}")
    if model == PAPER_MODEL:
        if weight_bits != DEFAULT_WEIGHT_BITS or kv_dtype not in ("bf16", "fp16"):
            raise ConfigError(f"{PAPER_MODEL} is simulated in 16 bits only, as in the paper", hint="name another model")
        return OPT_13B
    from octavo.engine.loading import read_spec
    from octavo.models.model_files import load_model_files

    with working("reading the model's description"):
        files = load_model_files(model)
        costs = model_costs(read_spec(files), weight_bits=weight_bits, kv_dtype=kv_dtype)
    if fitted is not None and (fitted.model, fitted.kv_dtype) != (files.name, kv_dtype):
        raise ConfigError(
            f"the step times are those of {fitted.model} with {fitted.kv_dtype} KV, not of {files.name} with {kv_dtype} KV",
            hint=f"octavo bench machine {model} --kv-dtype {kv_dtype} --output FILE",
        )
    return costs


def _read_rates(machine: str | None) -> MachineRates:
    if machine != THIS_MACHINE:
        return A100_40GB
    from octavo.kernels.cpu import probe_machine
    from octavo.kernels.cpu_count import default_num_threads

    with working("measuring this machine"):
        rates = probe_machine(default_num_threads())
    return MachineRates(rates.read_gb_per_s * 1e9, max(rates.fp32_gflop_per_s, rates.bf16_gflop_per_s) * 1e9)


def _given_rates(rates: MachineRates, options: dict[str, Any]) -> MachineRates:
    """Returns the rates with those in the place of which the user gave others."""
    given = {name: options[option] * unit for option, (name, unit) in ROOFLINE_OPTIONS.items() if options[option] is not None}
    return replace(rates, **given)


def _num_requests(settings: SimulationSettings) -> int | None:
    """Returns how many requests will come to an end; None where only the run tells."""
    return None if settings.trace or settings.workload == "chats" else settings.requests


def _print_table(reports: dict[str, Report]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for allocator in reports:
        table.add_column(allocator, justify="right")
    columns = [_lines(report) for report in reports.values()]
    for name in columns[0]:
        table.add_row(name, *(lines[name] for lines in columns))
    Console(highlight=False).print(table)


def _lines(report: Report) -> dict[str, str]:
    """Returns the lines of the table: what is shown, and its figure."""
    split = {f"memory while it is short: {kind}": f"{share:.1%}" for kind, share in (report.split or {}).items()}
    if not split:
        split = {f"memory while it is short: {kind}": "–" for kind in ("tokens", "reservation", "internal", "external")}
    cost = report.cost_per_million_tokens
    return {
        "sequences at once, mean": f"{report.mean_running:.2f}",
        "sequences at once, most": f"{report.peak_running}",
        **split,
        **_spread_lines("time to first token", report.ttft),
        **_spread_lines("time per later token", report.tpot),
        "output tokens per second": f"{report.output_tokens_per_s:.1f}",
        "requests per second": f"{report.requests_per_s:.3f}",
        "requests per second within the goals": f"{report.goodput_per_s:.3f}",
        "requests finished / refused": f"{report.num_finished} / {report.num_refused}",
        "preemptions": f"{report.num_preemptions}",
        "tokens computed again": f"{report.num_recomputed_tokens}",
        "prompt tokens found in the prefix cache": f"{report.hit_ratio:.1%}",
        "virtual time": f"{report.elapsed_s:.1f} s",
        "cost per million output tokens": "–" if cost is None else f"{cost:.2f}",
    }


def _spread_lines(name: str, spread: Spread) -> dict[str, str]:
    return {
        f"{name}, mean": _milliseconds(spread.mean_ms),
        f"{name}, median": _milliseconds(spread.p50_ms),
        f"{name}, 99 of 100": _milliseconds(spread.p99_ms),
    }


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"
