"""A plan's users over context as a chart.

Owns: the drawing. Must not know: how any figure comes about.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import ConfigError
from octavo.planner.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
MEMORY, SPEED, SERVED, ASKED = "#0b72b5", "#c8501e", "#e7eef5", "#1c2126"


def make_figure(path: Path, *, width: float = 7.0, height: float = 4.5) -> "Figure":
    """Returns an empty figure that can be saved under a name.

    Raises:
        ConfigError: the file's suffix is neither .png nor .svg, or matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"plot={str(path)!r} ends in neither {' nor '.join(SUFFIXES)}")
    try:
        from matplotlib.figure import Figure
    except ImportError as cause:
        raise ConfigError("a chart needs matplotlib, which is not installed", hint="pip install 'octavo[plot]'") from cause
    return Figure(figsize=(width, height), layout="constrained")


def draw_plan(plan: Plan, path: Path) -> None:
    """Writes a chart of both ceilings.

    Raises:
        ConfigError: as `make_figure`.
    """
    axes = make_figure(path, width=8.0).subplots()
    contexts = [row.context_tokens for row in plan.rows]
    axes.fill_between(contexts, [row.num_users for row in plan.rows], color=SERVED, label="served under both")
    ceilings = {
        "as many fit in memory": ([row.users_by_memory for row in plan.rows], "o-", MEMORY),
        f"as many get {plan.request.min_tokens_per_s:g} tokens/s each": ([row.users_by_speed for row in plan.rows], "s--", SPEED),
    }
    for label, (users, style, colour) in ceilings.items():
        axes.plot(contexts, users, style, color=colour, label=label)
        for context, count in zip(contexts, users, strict=True):
            axes.annotate(f"{count:,}", (context, count), (0, 6), textcoords="offset points", ha="center", fontsize=8, color=colour)
    if plan.asked is not None:
        asked = f"asked for: {plan.request.num_users:,} at {plan.asked.context_tokens:,}"
        axes.plot([plan.asked.context_tokens], [plan.request.num_users], "*", color=ASKED, markersize=14, label=asked)
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_xticks(contexts, [_short(context) for context in contexts], minor=False)
    axes.set(xlabel="context, tokens", ylabel="conversations at once", ylim=(0, _above(plan)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_title(f"{plan.model} on {plan.machine.name}, {plan.weight_format} weights, {plan.request.kv_dtype} KV", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, alpha=0.3)
    axes.legend(frameon=False)
    axes.figure.savefig(path)


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def _above(plan: Plan) -> float:
    """Returns where the axis of users ends: the legend and the highest figure stand below it."""
    return 4.0 * max(1, plan.request.num_users, *(max(row.users_by_memory, row.users_by_speed) for row in plan.rows))
