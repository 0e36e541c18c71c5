"""A load's figures over the number of requests at a time, as a chart.

Owns: the drawing. Must not know: how any figure comes about.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.planner.chart import make_figure

TIMES = {"ttft_ms": "first text, ms", "inter_token_ms": "between chunks, ms"}


def draw_load(rows: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Writes a chart of the rates and of the times.

    Raises:
        ConfigError: as `make_figure`.
    """
    figure = make_figure(path, width=10.0)
    rates, *times = figure.subplots(1, 1 + len(TIMES))
    concurrency = [row["concurrency"] for row in rows]
    rates.plot(concurrency, [row["tokens_per_s"] for row in rows], marker="o")
    rates.set(title="output tokens/s", ylim=(0, None))
    for axes, (name, heading) in zip(times, TIMES.items(), strict=True):
        for share, style in (("p50", "-"), ("p90", "--"), ("p99", ":")):
            axes.plot(concurrency, [row[name][share] for row in rows], marker="o", linestyle=style, label=share)
        axes.set(title=heading, ylim=(0, None))
        axes.legend()
    for axes in (rates, *times):
        axes.set_xscale("log", base=2)
        axes.set_xticks(concurrency, labels=list(map(str, concurrency)), minor=False)
        axes.minorticks_off()
        axes.set_xlabel("requests at a time")
        axes.grid(True, alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path)
