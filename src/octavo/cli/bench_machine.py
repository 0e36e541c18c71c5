"""``octavo bench machine``: what this machine can do, and how long a model's steps take on it.

Owns: the options, the progress bar and the tables. Must not know: how anything is measured or fitted.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import given_settings, settings_options, with_options
from octavo.cli.terminal import progress_bar, working
from octavo.config import EngineConfig

if TYPE_CHECKING:
    from octavo.kernels.cpu import MachineRates
    from octavo.simulator.fitted_time import FittedRates

ENGINE_OPTIONS = ("weights", "kv_dtype", "max_num_seqs", "max_num_batched_tokens", "num_threads")
SKIPPED = [name for name in EngineConfig.__dataclass_fields__ if name not in ENGINE_OPTIONS]


@with_options(*settings_options(EngineConfig, skip=SKIPPED))
@click.command("machine")
@click.argument("model", required=False)
@click.option(
    "--rounds", default=3, show_default=True, type=click.IntRange(1), help="Times that each step runs; the median counts."
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="File for the step times, for `octavo simulate`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def machine(model: str | None, rounds: int, output: Path | None, as_json: bool, **options: Any) -> None:
    """Measure how fast this machine reads memory and multiplies.

    With MODEL, whatever `octavo serve` takes, also time steps of it, find the times that explain them, and tell how well they do.
    """
    if output is not None and model is None:
        raise click.UsageError("--output keeps the step times of a model: name one", click.get_current_context())
    config = EngineConfig(model=model or "", **given_settings(EngineConfig, options))
    probed = _probe(config.num_threads)
    rates = _fit(config, rounds) if model else None
    if rates is not None and output is not None:
        rates.save(output)
    if as_json:
        click.echo(json.dumps({"machine": asdict(probed), "step_times": asdict(rates) if rates else None}, indent=2))
    else:
        _print_machine(probed)
        if rates is not None:
            _print_rates(rates)


def _probe(num_threads: int | None) -> "MachineRates":
    from octavo.kernels.cpu import probe_machine
    from octavo.kernels.cpu_count import default_num_threads

    with working("measuring this machine"):
        return probe_machine(num_threads or default_num_threads())


def _fit(config: EngineConfig, num_rounds: int) -> "FittedRates":
    from octavo.engine.calibration import SHAPES, calibrate
    from octavo.engine.loading import build_engine, load_parts
    from octavo.kernels.cpu_count import default_num_threads
    from octavo.kernels.processor import processor_name
    from octavo.simulator.fitted_time import fit_rates

    with working("fetching and loading the model"):
        parts = load_parts(config)
        engine = build_engine(config, *parts)
    with _bar(num_rounds * len(SHAPES)) as note:
        runs = calibrate(engine, parts.spec.windows, num_rounds, note)
    return fit_rates(
        runs,
        model=parts.files.name,
        weights=config.weights,
        kv_dtype=config.kv_dtype,
        num_threads=config.num_threads or default_num_threads(),
        processor=processor_name(),
    )


@contextmanager
def _bar(num_runs: int) -> Iterator[Callable[[str], None]]:
    """Shows how many runs have begun, and gives the function that says so."""
    with progress_bar("runs") as bar:
        task = bar.add_task("", total=num_runs)

        def note(name: str) -> None:
            bar.update(task, advance=1, description=name)

        yield note


def _print_machine(rates: "MachineRates") -> None:
    click.echo(f"reads memory                 {rates.read_gb_per_s:8.1f} GB/s")
    kinds = {"float32": rates.fp32_gflop_per_s, "bf16": rates.bf16_gflop_per_s, "int8": rates.int8_gop_per_s}
    for kind, rate in kinds.items():
        shown = f"{rate:8.1f} GFLOP/s" if rate else "       –  no such instructions here"
        click.echo(f"multiplies {kind:<18}{shown}")


def _print_rates(rates: "FittedRates") -> None:
    from octavo.simulator.fitted_time import TERM_UNITS

    click.echo(f"\nstep times of {rates.model}:")
    for term, (words, unit, factor) in TERM_UNITS.items():
        click.echo(f"  {words:<46}{rates.seconds[term] * factor:10.3f} {unit}")
    click.echo("\nruns, each fitted to the others:")
    for name, error in rates.run_errors.items():
        click.echo(f"  {name:<16}{error:+8.1%}")
    click.echo(f"\n{rates.describe()}")
