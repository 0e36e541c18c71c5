"""A plan's users over context as a chart.

Owns: the drawing. Must not know: how any figure comes about.
"""

from pathlib import Path

from octavo.errors import ConfigError
from octavo.planner.plan import Plan

SUFFIXES = (".png", ".svg")


def draw_plan(plan: Plan, path: Path) -> None:
    """Writes a chart of both ceilings.

    Raises:
        ConfigError: the file's suffix is neither .png nor .svg, or matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"plot={str(path)!r} ends in neither {' nor '.join(SUFFIXES)}")
    try:
        from matplotlib.figure import Figure
    except ImportError as cause:
        raise ConfigError("a chart needs matplotlib, which is not installed", hint="pip install 'octavo[plot]'") from cause
    axes = Figure(figsize=(7, 4.5), layout="constrained").subplots()
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
