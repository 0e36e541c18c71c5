"""A plan as tables and as JSON.

Owns: wording and layout. Must not know: how any figure comes about.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from octavo.planner.advice import Advice
from octavo.planner.formats import kv_format
from octavo.planner.plan import ContextRow, Plan

GIB, MIB = 2**30, 2**20


def print_plan(console: Console, plan: Plan, advice: Advice | None) -> None:
    """Prints all tables, the answer, and where the machine's values come from."""
    console.print(f"[bold]{plan.model}[/] ({plan.spec.architecture}) on [bold]{plan.machine.name}[/]{_nodes(plan)}")
    console.print(memory_table(plan), kv_table(plan), context_table(plan))
    for line in answer(plan):
        console.print(line)
    if advice is not None:
        console.print(f"[bold]does not fit:[/] {advice.reason}")
        console.print(f"what would: {' or '.join(advice.options)}" if advice.options else "no setting makes it fit")
    console.print()
    for name, source in plan.machine.sources.items():
        console.print(f"[dim]{name}: {source}[/]")


def memory_table(plan: Plan) -> Table:
    """Returns what the memory of each node goes to."""
    budget, machine = plan.budget, plan.machine
    table = _table("memory" if machine.nodes == 1 else "memory of each node", ("", "left"), ("GiB", "right"), ("", "left"))
    rows = (
        ("reported by the system", machine.total_bytes, ""),
        ("available", machine.available_bytes, ""),
        ("reserve", machine.reserve_bytes, "left free"),
        ("usable", budget.usable_bytes, "available − reserve"),
        ("weights", budget.weight_bytes, plan.weights.description),
        (
            "workspace",
            budget.workspace_bytes,
            f"steps of {plan.request.step_tokens} tokens and {plan.request.max_num_seqs} sequences, logits",
        ),
        ("overhead", budget.overhead_bytes, "the engine itself"),
        ("KV cache", budget.kv_bytes, "what is left" if not budget.shortage_bytes else "nothing is left"),
        ("peak while loading", budget.load_peak_bytes, "weights, the largest tensor once more, overhead"),
    )
    for name, size, note in rows:
        table.add_row(name, f"{size / GIB:.2f}", note)
    return table


def kv_table(plan: Plan) -> Table:
    """Returns what each kind of layer keeps."""
    storage = kv_format(plan.request.kv_dtype)
    table = _table(
        f"KV in {plan.request.kv_dtype}", ("layers", "left"), ("number", "right"), ("bytes per token", "right"), ("", "left")
    )
    for kind in plan.spec.attention:
        note = "" if kind.window is None else f"at most {kind.window * kind.bytes_per_token(storage) / MIB:.1f} MiB a sequence"
        table.add_row(kind.name, str(kind.num_layers), f"{kind.bytes_per_token(storage):,}", note)
    for state in plan.spec.states:
        table.add_row("recurrent state", str(state.num_layers), "0", f"{state.num_bytes() / MIB:.1f} MiB a sequence")
    if plan.spec.num_sharing_layers:
        table.add_row("sharing others' KV", str(plan.spec.num_sharing_layers), "0", "")
    growing = plan.spec.growing_bytes_per_token(storage)
    table.add_row("all", "", f"{plan.spec.bytes_per_token(storage):,}", f"{growing:,} beyond every window")
    return table


def context_table(plan: Plan) -> Table:
    """Returns the most users at each context under both ceilings."""
    speed = f"{plan.request.min_tokens_per_s:g} tokens/s"
    columns = ("context", "MiB a user", "users by memory", f"users at {speed}", "users", "binds", "tokens/s each")
    table = _table("most users at once", *((name, "right") for name in columns))
    rows = {row.context_tokens: row for row in (*plan.rows, *([plan.asked] if plan.asked else []))}
    for context in sorted(rows):
        table.add_row(*_row_cells(rows[context]))
    return table


def _row_cells(row: ContextRow) -> Iterable[str]:
    yield f"{row.context_tokens:,}"
    yield f"{row.sequence_bytes / MIB:,.1f}"
    yield from (f"{count:,}" for count in (row.users_by_memory, row.users_by_speed, row.num_users))
    yield row.binding
    yield f"{row.tokens_per_s:.1f}"


def answer(plan: Plan) -> Iterable[str]:
    """Yields the largest context, and whether this engine runs the model."""
    largest, request = plan.largest_context, plan.request
    yield (
        f"largest context for {request.num_users:,} user{'' if request.num_users == 1 else 's'}: {largest.tokens:,} tokens "
        f"(memory {largest.by_memory:,}, speed {largest.by_speed:,})"
    )
    if plan.resident_bytes is not None and plan.asked is not None:
        users = f"{request.num_users:,} at {plan.asked.context_tokens:,} tokens"
        yield f"the process holds at most {plan.resident_bytes / MIB:,.0f} MiB of each node with {users}"
    if not plan.runs_here:
        yield "Octavo does not run this model so; the plan holds for engines that keep KV as the tables say"


def _nodes(plan: Plan) -> str:
    return f", {plan.machine.nodes} nodes" if plan.machine.nodes > 1 else ""


def _table(title: str, *columns: tuple[str, str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for name, side in columns:
        table.add_column(name, justify="right" if side == "right" else "left")
    return table


def plan_as_json(plan: Plan, advice: Advice | None) -> dict[str, Any]:
    """Returns every figure of a plan, sizes in bytes."""
    storage = kv_format(plan.request.kv_dtype)
    spec = plan.spec
    return {
        "model": plan.model,
        "architecture": spec.architecture,
        "runs_here": plan.runs_here,
        "machine": dataclasses.asdict(plan.machine),
        "weights": dataclasses.asdict(plan.weights) | {"format": plan.weight_format},
        "kv": {
            "dtype": plan.request.kv_dtype,
            "bytes_per_token": spec.bytes_per_token(storage),
            "growing_bytes_per_token": spec.growing_bytes_per_token(storage),
            "state_bytes": spec.state_bytes(),
            "num_sharing_layers": spec.num_sharing_layers,
            "kinds": [
                {"name": kind.name, "num_layers": kind.num_layers, "bytes_per_token": kind.bytes_per_token(storage)}
                for kind in spec.attention
            ],
        },
        "budget": dataclasses.asdict(plan.budget),
        "contexts": [row_as_json(row) for row in plan.rows],
        "largest_context": dataclasses.asdict(plan.largest_context) | {"tokens": plan.largest_context.tokens},
        "resident_bytes": plan.resident_bytes,
        "asked": None if plan.asked is None else row_as_json(plan.asked),
        "fits": plan.fits,
        "advice": None if advice is None else dataclasses.asdict(advice),
    }


def row_as_json(row: ContextRow) -> dict[str, Any]:
    """Returns one row with the figures that follow from it."""
    return dataclasses.asdict(row) | {"num_users": row.num_users, "binding": row.binding}
