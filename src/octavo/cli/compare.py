"""``octavo compare``: what paging buys, measured here; or two servers side by side.

Owns: the options, the progress bars and the table. Must not know: how anything is measured, or what a page looks like.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.terminal import progress_bar, working
from octavo.comparison.conversations import MAX_CONVERSATIONS, make_conversations
from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from octavo.comparison.conversations import Conversation
    from octavo.comparison.record import Comparison

POSITIVE = click.IntRange(min=1)
PAGE = click.Path(path_type=Path, dir_okay=False)
NUM_SERVERS = 2
ENGINE_OPTIONS = ("kv_memory", "max_model_len", "num_threads")


@click.command("compare")
@click.argument("model", required=False)
@click.option("--conversations", default=48, show_default=True, type=click.IntRange(1, MAX_CONVERSATIONS), help="How many.")
@click.option("--kv-memory", default="96MiB", show_default=True, help="Memory for KV, the same in every run.")
@click.option("--max-model-len", default=2048, show_default=True, type=POSITIVE, help="Most tokens of one sequence.")
@click.option("--num-threads", type=POSITIVE, help="Threads that compute; every processor this process may use if not given.")
@click.option("--seed", default=0, show_default=True, help="Draws the lengths of the answers.")
@click.option("--url", "urls", multiple=True, metavar="URL", help="Compare two servers instead: give it twice.")
@click.option("--concurrency", type=POSITIVE, help="With --url: requests at a time; all at once if not given.")
@click.option("--api-key", default="none", help="With --url: key to send.")
@click.option("--html", default="octavo-compare.html", show_default=True, type=PAGE, help="File that the page is written to.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    model: str | None,
    conversations: int,
    seed: int,
    urls: tuple[str, ...],
    html: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Answer the same conversations with and without paging, and show what it buys: a table, and a page with charts.

    Every run has the same model, the same bytes and the same requests. Only the memory differs: contiguous runs reserved for the
    longest sequence, or for the next power of two; blocks; blocks with equal beginnings stored once.

    With --url twice, two running servers are compared in the same way, whatever they are; MODEL is then a name that both know.
    """
    made = make_conversations(conversations, seed)
    comparison = _compare_servers(urls, model, made, options) if urls else _compare_memories(model, made, options)
    _show(comparison, html, as_json=as_json)
    if not urls and not comparison.is_exact:
        raise OctavoError("the answers came out differently")


def _compare_servers(
    urls: tuple[str, ...], model: str | None, conversations: "list[Conversation]", options: dict[str, Any]
) -> "Comparison":
    from octavo.cli.compare_servers import compare_servers, make_loads

    if len(urls) != NUM_SERVERS:
        raise click.UsageError(f"--url is given {len(urls)} times; two servers are compared", click.get_current_context())
    loads = make_loads(urls, model, options["api_key"], conversations)
    concurrency = options["concurrency"] or len(conversations)
    with _bars(len(conversations)) as note:
        return compare_servers(loads, conversations, concurrency, _typed(), note)


def _compare_memories(model: str | None, conversations: "list[Conversation]", options: dict[str, Any]) -> "Comparison":
    from octavo.comparison.measuring import compare_memories
    from octavo.engine.loading import load_parts

    config = EngineConfig(model=model or DEFAULT_MODEL, **{name: options[name] for name in ENGINE_OPTIONS})
    with working("fetching and loading the model"):
        parts = load_parts(config)
    with _bars(len(conversations)) as note:
        return compare_memories(parts, config, conversations, _typed(), note)


@contextmanager
def _bars(num_conversations: int) -> Iterator[Callable[[str, int], None]]:
    """Shows one bar for each run, and gives the function that moves them."""
    with progress_bar("answered") as bar:
        tasks: dict[str, Any] = {}

        def note(name: str, num_finished: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=num_conversations)
            bar.update(tasks[name], completed=num_finished)

        yield note


def _typed() -> str:
    return " ".join(["octavo", *sys.argv[1:]])


def _show(comparison: "Comparison", html: Path, *, as_json: bool) -> None:
    from octavo.comparison.page import make_page

    html.write_text(make_page(comparison), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(comparison.as_json(), indent=2))
    else:
        _print_table(comparison)
        click.echo(f"page: {html}")


def _print_table(comparison: "Comparison") -> None:
    from rich.console import Console
    from rich.table import Table

    from octavo.comparison.lines import figure_rows, verdict

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for run in comparison.runs:
        table.add_column(run.name, justify="right")
    for name, values in figure_rows(comparison):
        table.add_row(name, *values)
    console = Console(highlight=False, soft_wrap=True)
    console.print(comparison.summary, end="\n\n")
    console.print(table)
    console.print(f"\n{verdict(comparison)}")
