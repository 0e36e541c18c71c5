"""``octavo top``: a running server's figures in the terminal.

Owns: which figures are shown, and the rates between two looks. Must not know: how the server finds them.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from octavo.errors import OctavoError

if TYPE_CHECKING:
    from rich.table import Table

BLOCK_STATES = ("used", "shared", "cached", "free")
Figures = Mapping[str, float]


@click.command("top")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Address of a running Octavo server.")
@click.option("--api-key", default="none", help="Key to send.")
@click.option("--seconds", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Time between two looks.")
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
            live.update(make_table(last, figures, now - last_time), refresh=True)
            if once:
                return
            last, last_time = figures, now


def read_figures(url: str, api_key: str) -> Figures:
    """Returns a server's metrics by name; a name with labels is written as ``name:label``.

    Raises:
        OctavoError: no Octavo server answers there.
    """
    import httpx
    from prometheus_client.parser import text_string_to_metric_families

    try:
        response = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {api_key}"})
        response.raise_for_status()
        families = list(text_string_to_metric_families(response.text))
    except (httpx.HTTPError, ValueError) as cause:
        raise OctavoError(f"{url} does not answer as a server: {cause}", hint="start one: octavo serve") from cause
    figures = {}
    for sample in (sample for family in families for sample in family.samples):
        labels = [value for name, value in sample.labels.items() if name != "model_name"]
        figures[":".join([sample.name.removeprefix("octavo:"), *labels])] = sample.value
    if "num_requests_running" not in figures:
        raise OctavoError(f"{url} has no figures of an Octavo server", hint="give the address that octavo serve prints")
    return figures


def make_table(last: Figures, figures: Figures, seconds: float) -> "Table":
    """Returns what is shown.

    Args:
        last: the figures ``seconds`` earlier, for rates.
    """
    from rich.table import Table

    def rate(name: str) -> float:
        return (figures[name] - last[name]) / seconds

    table = Table(show_header=False, title="octavo")
    table.add_row("requests", f"{figures['num_requests_running']:.0f} running, {figures['num_requests_waiting']:.0f} waiting")
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
