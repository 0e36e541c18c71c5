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
    axes = make_figure(path).subplots()
    contexts = [row.context_tokens for row in plan.rows]
    axes.plot(contexts, [row.users_by_memory for row in plan.rows], marker="o", label="memory")
    speed = f"speed, {plan.request.min_tokens_per_s:g} tokens/s each"
    axes.plot(contexts, [row.users_by_speed for row in plan.rows], marker="s", linestyle="--", label=speed)
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", linthresh=1)
    axes.set(xlabel="context, tokens", ylabel="users at once", title=f"{plan.model} on {plan.machine.name}")
    axes.grid(True, alpha=0.3)
    axes.legend()
    axes.figure.savefig(path)
