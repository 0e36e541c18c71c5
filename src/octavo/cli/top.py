"""``octavo top``: a running server's figures and requests in the terminal.

Owns: which figures are shown, and the rates between two looks. Must not know: how the server finds them.
"""

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import FiniteRange
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

BLOCK_STATES = ("used", "shared", "cached", "free")
NUM_SHOWN_REQUESTS = 20
Figures = Mapping[str, float]


@click.command("top")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Address of a running Octavo server.")
@click.option("--api-key", default="none", help="Key to send.")
@click.option("--seconds", default=1.0, show_default=True, type=FiniteRange(0.1), help="Time between two looks.")
@click.option("--once", is_flag=True, help="Look twice, print once and end.")
def command(url: str, api_key: str, seconds: float, once: bool) -> None:
    """Show what a running server does, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    last, last_time = read_figures(url, api_key), time.monotonic()
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            time.sleep(seconds)
            figures, now = read_figures(url, api_key), time.monotonic()
            live.update(make_view(last, figures, now - last_time, read_requests(url, api_key)), refresh=True)
            if once:
                return
            last, last_time = figures, now


def read_figures(url: str, api_key: str) -> Figures:
    """Returns a server's metrics by name; a name with labels is written as ``name:label``.

    Raises:
        OctavoError: no Octavo server answers there.
    """
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(_get(url, "/metrics", api_key)))
    except ValueError as cause:
        raise OctavoError(f"{url} has no metrics: {cause}", hint="give the address that octavo serve prints") from cause
    figures = {}
    for sample in (sample for family in families for sample in family.samples):
        labels = [value for name, value in sample.labels.items() if name != "model_name"]
        figures[":".join([sample.name.removeprefix("octavo:"), *labels])] = sample.value
    if "num_requests_running" not in figures:
        raise OctavoError(f"{url} has no figures of an Octavo server", hint="give the address that octavo serve prints")
    return figures


def read_requests(url: str, api_key: str) -> list[dict[str, Any]]:
    """Returns what a server says of the requests in it, the oldest first.

    Raises:
        OctavoError: no Octavo server answers there.
    """
    told = json.loads(_get(url, "/octavo/requests", api_key))
    return sorted(told, key=lambda request: request["choices"][0]["sequence_id"])


def _get(url: str, path: str, api_key: str) -> str:
    import httpx

    try:
        response = httpx.get(url + path, headers={"Authorization": f"Bearer {api_key}"})
        response.raise_for_status()
    except httpx.HTTPError as cause:
        raise OctavoError(f"{url} does not answer as a server: {cause}", hint="start one: octavo serve") from cause
    return response.text


def make_view(last: Figures, figures: Figures, seconds: float, requests: list[dict[str, Any]]) -> "Group":
    """Returns what is shown: the server, then its requests."""
    from rich.console import Group

    return Group(make_table(last, figures, seconds), make_request_table(requests))


def make_request_table(requests: list[dict[str, Any]]) -> "Table":
    """Returns a row for each of the oldest requests."""
    from rich.table import Table

    shown = requests[:NUM_SHOWN_REQUESTS]
    title = f"requests, the oldest {len(shown)} of {len(requests)}" if len(requests) > len(shown) else "requests"
    table = Table("id", "state", "tokens", "computed", "hit", "blocks", "preempted", title=title)
    for request in shown:
        choices = request["choices"]
        states = ", ".join(dict.fromkeys(choice["state"] for choice in choices))
        tokens, computed, blocks = (
            str(sum(choice[name] for choice in choices)) for name in ("num_tokens", "num_computed_tokens", "num_blocks")
        )
        preempted = str(sum(len(choice["preempted_by"]) for choice in choices))
        table.add_row(request["request_id"], states, tokens, computed, str(request["prefix"]["num_hit_tokens"]), blocks, preempted)
    return table


def make_table(last: Figures, figures: Figures, seconds: float) -> "Table":
    """Returns what is shown.

    Args:
        last: the figures ``seconds`` earlier, for rates.
    """
    from rich.table import Table

    def rate(name: str) -> float:
        return (figures[name] - last[name]) / seconds

    table = Table(show_header=False, title="octavo")
    names = ("running", "waiting", "preempted")
    table.add_row("sequences", ", ".join(f"{figures[f'num_requests_{name}']:.0f} {name}" for name in names))
    table.add_row("tokens/s computed", f"{rate('computed_tokens_total'):.1f}")
    ended = f"{rate('generation_tokens_total'):.1f} generated, {rate('prompt_tokens_total'):.1f} of prompts"
    table.add_row("tokens/s of requests that ended", ended)
    queries, hits = figures["prefix_cache_queries_total"], figures["prefix_cache_hits_total"]
    table.add_row("prefix cache", f"{hits / max(1, queries):.1%} of {queries:.0f} tokens")
    table.add_row("preemptions", f"{figures['num_preemptions_total']:.0f}")
    blocks = {state: figures[f"kv_blocks:{state}"] for state in BLOCK_STATES}
    table.add_row("KV blocks", ", ".join(f"{count:.0f} {state}" for state, count in blocks.items()))
    table.add_row("KV usage", _bar(figures["kv_cache_usage_perc"]))
    return table


def _bar(share: float, width: int = 40) -> str:
    filled = round(share * width)
    return "█" * filled + "░" * (width - filled) + f" {share:.0%}"
