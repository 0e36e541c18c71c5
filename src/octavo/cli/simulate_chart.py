"""A simulation's reports beside each other, as a chart.

Owns: the drawing. Must not know: how any figure comes about.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.planner.chart import make_figure
from octavo.simulator.report import Report, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {  # of slots -> colour, words; colours are those of the concept pages' pictures
    "tokens": ("#0b72b5", "hold a token"),
    "reservation": ("#7fc0ea", "reserved for a later token"),
    "internal": ("#c8501e", "never used"),
    "external": ("#c9c4b8", "broken up, or kept free"),
}
QUANTILES = {"p50_ms": ("#0b72b5", "median"), "p90_ms": ("#7fc0ea", "90 of 100"), "p99_ms": ("#c8501e", "99 of 100")}
LEGEND = {"fontsize": 8, "frameon": False, "loc": "upper left", "bbox_to_anchor": (0, 0)}  # below the bars
LABEL_RATIO = 0.06  # a narrower part of a bar has no room for its figure


def draw_simulation(reports: Mapping[str, Report], title: str, path: Path) -> None:
    """Writes a chart with one bar, or group of bars, for each allocator.

    Raises:
        ConfigError: as `make_figure`.
    """
    figure = make_figure(path, width=11.0, height=3.4 + 1.1 * len(reports))
    (memory, running), (first, later), (rate, preempted) = figure.subplots(3, 2)
    _draw_split(memory, reports)
    means = {name: report.mean_running for name, report in reports.items()}
    labels = [f"{report.mean_running:.1f}, at most {report.peak_running}" for report in reports.values()]
    _draw_values(running, "sequences at once, mean over time", means, labels)
    _draw_times(first, "time to first token, s", {name: report.ttft for name, report in reports.items()}, 1e-3)
    _draw_times(later, "time per later token, ms", {name: report.tpot for name, report in reports.items()}, 1)
    _draw_values(rate, "output tokens per second", {name: report.output_tokens_per_s for name, report in reports.items()})
    _draw_values(preempted, "preemptions", {name: report.num_preemptions for name, report in reports.items()})
    for axes in figure.axes:
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.savefig(path)


def _draw_split(axes: "Axes", reports: Mapping[str, Report]) -> None:
    axes.set_title("KV memory while requests wait for it", loc="left", fontsize=10)
    axes.set(xlim=(0, 1), xticks=[])
    for name, report in reports.items():
        left = 0.0
        for kind, share in (report.split or {}).items():
            colour = KINDS[kind][0]
            axes.barh(name, share, left=left, color=colour)
            if share >= LABEL_RATIO:
                ink = "#1c2126" if kind in ("reservation", "external") else "white"
                axes.text(left + share / 2, name, f"{share:.0%}", ha="center", va="center", fontsize=8, color=ink)
            left += share
        if not report.split:
            axes.barh(name, 0)
            axes.text(0.01, name, "nobody waited", va="center", fontsize=8)
    handles = [axes.barh(0, 0, color=colour, label=words) for colour, words in KINDS.values()]
    axes.legend(handles=handles, ncols=2, **LEGEND)


def _draw_values(axes: "Axes", title: str, values: Mapping[str, float], labels: Sequence[str] | None = None) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    bars = axes.barh(list(values), list(values.values()), color="#0b72b5")
    axes.bar_label(bars, labels or [f"{value:,.4g}" for value in values.values()], padding=3, fontsize=8)
    axes.set(xlim=(0, 1.4 * max(1e-9, *values.values())), xticks=[])


def _draw_times(axes: "Axes", title: str, spreads: Mapping[str, Spread], unit_per_ms: float) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    height = 0.8 / len(QUANTILES)
    for index, (quantile, (colour, words)) in enumerate(QUANTILES.items()):
        values = [(getattr(spread, quantile) or 0.0) * unit_per_ms for spread in spreads.values()]
        places = [row + (index - 1) * height for row in range(len(spreads))]
        bars = axes.barh(places, values, height, color=colour, label=words)
        axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3, fontsize=7)
    axes.set_yticks(range(len(spreads)), list(spreads))
    axes.margins(x=0.12)
    axes.set(xlim=(0, None), xticks=[])
    axes.legend(ncols=3, **LEGEND)
