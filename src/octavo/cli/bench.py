"""``octavo bench``: measures a running server; of this machine, see `bench_machine.py`.

Owns: the options, the progress bar and the table. Must not know: what the figures mean.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import click

from octavo.cli.bench_machine import machine
from octavo.cli.load import WORKLOADS, Load, find_model, make_requests, run_load, summarise
from octavo.cli.load_chart import draw_load
from octavo.cli.options import FiniteRange
from octavo.planner.chart import make_figure


@click.group("bench")
def command() -> None:
    """Measure."""


command.add_command(machine)


def _read_counts(_ctx: click.Context, _option: click.Parameter, given: str) -> list[int]:
    try:
        counts = [int(count) for count in given.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise click.BadParameter(f"{given!r} is no list of numbers such as 1,4,16")
    return counts


@command.command("serve")
@click.option(
    "--url", default="http://127.0.0.1:8000", show_default=True, help="Address of a server that speaks OpenAI's interface."
)
@click.option("--model", help="Name of the model there; the first one that it lists if not given.")
@click.option("--api-key", default="none", help="Key to send.")
@click.option(
    "--concurrency", default="1,4,16,64", show_default=True, callback=_read_counts, help="Requests at a time, one row for each."
)
@click.option("--workload", default="chat", show_default=True, help=f"{', '.join(WORKLOADS)}, or a file with one JSON body a line.")
@click.option("--num-requests", default=64, show_default=True, type=click.IntRange(1), help="Requests of each row.")
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(1), help="Most tokens of an answer.")
@click.option(
    "--goodput-ttft-ms",
    default=1000.0,
    show_default=True,
    type=FiniteRange(0),
    help="Requests whose first text comes later are not goodput.",
)
@click.option("--seed", default=0, show_default=True, help="Makes the workload repeatable.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also write a chart: a .png or .svg file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def serve(url: str, model: str | None, api_key: str, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Send a workload to a running server and tell how fast the answers came.

    A chunk of a stream may hold several tokens: inter-token times are those between chunks with text. Each row has prompts of its
    own, which no earlier one has left in a cache; a file's are the same in all rows.
    """
    if plot is not None:
        make_figure(plot)  # before the work: its name may be wrong
    name = model or find_model(url, api_key)
    rows = []
    for number, concurrency in enumerate(options["concurrency"]):
        requests = make_requests(options["workload"], options["num_requests"], options["max_tokens"], options["seed"] + number)
        load = Load(url, name, requests, api_key)
        rows.append({"concurrency": concurrency, **_measure(load, concurrency, options["goodput_ttft_ms"])})
    if plot is not None:
        draw_load(rows, f"{name} at {url}, workload {options['workload']}", plot)
    if as_json:
        click.echo(json.dumps({"url": url, "model": name, "workload": options["workload"], "rows": rows}))
    else:
        _print_table(rows)


def _measure(load: Load, concurrency: int, goodput_ttft_ms: float) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{concurrency} at a time", total=len(load.requests))
        started = time.perf_counter()
        answers = asyncio.run(run_load(load, concurrency, lambda: progress.advance(task)))
        seconds = time.perf_counter() - started
    return summarise(answers, seconds, goodput_ttft_ms=goodput_ttft_ms)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("at a time", "tokens/s", "requests/s", "goodput/s", title="times in ms: p50 / p90 / p99")
    for heading in ("first text", "between chunks", "whole answer", "errors"):
        table.add_column(heading)
    for row in rows:
        times = [" / ".join(map(_shown, row[name].values())) for name in ("ttft_ms", "inter_token_ms", "e2e_ms")]
        faults = {**row["errors"], "the same text as another's": row["duplicates"]}
        errors = ", ".join(f"{count} × {error}" for error, count in faults.items() if count) or "none"
        rates = [str(row[name]) for name in ("concurrency", "tokens_per_s", "requests_per_s", "goodput_requests_per_s")]
        table.add_row(*rates, *times, errors)
    Console().print(table)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}"
