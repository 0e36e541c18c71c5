"""Why a plan does not fit, and the nearest settings that do.

Owns: the search over settings. Must not know: how advice is shown.

Invariants:
1. Every setting that is advised was planned, and fits.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from math import floor

from octavo.kernels.kv_layout import KV_DTYPES
from octavo.planner.formats import KV_FORMATS, WEIGHT_FORMATS
from octavo.planner.host_memory import format_gib
from octavo.planner.plan import Plan, Planner
from octavo.planner.weight_sizes import sizes_from_parameters

FORMAT_GROUP = 256  # elements that are whole groups in every format


@dataclass(frozen=True)
class Advice:
    """Why a plan does not fit, and options of the command line of which each makes it fit."""

    reason: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Alternative:
    """Other formats for the same request, as options and as the planner that uses them."""

    options: tuple[str, ...]
    planner: Planner


def advise(planner: Planner, plan: Plan) -> Advice | None:
    """Returns advice for a plan that does not fit, None for one that does."""
    if plan.fits:
        return None
    alternatives = list(_alternatives(planner))
    unchanged = next((found.options for found in alternatives if found.planner.plan().fits), None)
    reduced = next((options for found in alternatives if (options := list(_reductions(found)))), [])
    options = [*([unchanged] if unchanged else []), *reduced]
    return Advice(find_reason(plan), tuple(" ".join(option) for option in options))


def find_reason(plan: Plan) -> str:
    """Returns in one sentence, with the numbers, what stands in the way."""
    budget, request, asked = plan.budget, plan.request, plan.asked
    if budget.shortage_bytes:
        return (
            f"weights {format_gib(budget.weight_bytes)}, workspace {format_gib(budget.workspace_bytes)} and overhead "
            f"{format_gib(budget.overhead_bytes)}, or loading at its peak {format_gib(budget.load_peak_bytes)}, "
            f"are {format_gib(budget.shortage_bytes)} more than the usable {format_gib(budget.usable_bytes)}"
        )
    if asked is not None and asked.users_by_memory < request.num_users:
        return (
            f"{format_gib(budget.kv_bytes)} of KV memory hold {_users(asked.users_by_memory)} at {asked.context_tokens:,} tokens; "
            f"{_users(request.num_users)} would take {format_gib(request.num_users * asked.sequence_bytes)} without a shared prefix"
        )
    return (
        f"{_users(request.num_users)} would get less than {request.min_tokens_per_s:g} tokens/s each: "
        "reading the weights and their KV takes too long"
    )


def _alternatives(planner: Planner) -> Iterator[Alternative]:
    """Yields the formats to try: the present ones, smaller KV, smaller weights, and the smallest weights with smaller KV."""
    yield Alternative((), planner)
    kv_dtypes, weight_formats = _smaller_kv_dtypes(planner), _smaller_weight_formats(planner)
    for name in kv_dtypes:
        yield Alternative((f"--kv-dtype {name}",), _with_kv_dtype(planner, name))
    for name in weight_formats:
        yield Alternative((f"--weights {name}",), _with_weights(planner, name))
    for weights in weight_formats[-1:]:
        for name in kv_dtypes:
            both = _with_kv_dtype(_with_weights(planner, weights), name)
            yield Alternative((f"--weights {weights}", f"--kv-dtype {name}"), both)


def _reductions(alternative: Alternative) -> Iterator[tuple[str, ...]]:
    """Yields a shorter context, fewer users, or less speed, where each alone makes an alternative fit."""
    plan = alternative.planner.plan()
    asked = plan.asked
    if asked is None or plan.fits:
        return
    if plan.largest_context.tokens:
        yield (*alternative.options, f"--context {plan.largest_context.tokens}")
    if asked.num_users:
        yield (*alternative.options, f"--users {asked.num_users}")
    speed = floor(10 * alternative.planner.speed.tokens_per_s(plan.request.num_users, asked.context_tokens)) / 10
    if asked.users_by_memory >= plan.request.num_users and speed > 0:
        yield (*alternative.options, f"--min-speed {speed:g}")


def _with_kv_dtype(planner: Planner, name: str) -> Planner:
    request = dataclasses.replace(planner.request, kv_dtype=name)
    return Planner(planner.model, planner.spec, planner.machine, planner.weights, planner.weight_format, request)


def _with_weights(planner: Planner, name: str) -> Planner:
    weights = sizes_from_parameters(planner.spec, name)
    return Planner(planner.model, planner.spec, planner.machine, weights, name, planner.request)


def _smaller_kv_dtypes(planner: Planner) -> list[str]:
    """Returns the formats with fewer bits than the present one, the largest first: the engine's own where it runs the model."""
    allowed = KV_DTYPES if planner.spec.engine_spec is not None and planner.machine.nodes == 1 else KV_FORMATS
    sizes = {name: KV_FORMATS[name].num_bytes(FORMAT_GROUP) for name in KV_FORMATS}
    smaller = [name for name in allowed if sizes[name] < sizes[planner.request.kv_dtype]]
    return sorted(smaller, key=lambda name: -sizes[name])


def _smaller_weight_formats(planner: Planner) -> list[str]:
    """Returns the formats in which the weights are smaller than now, the largest first."""
    if planner.spec.parameters is None:
        return []
    sizes = {name: sizes_from_parameters(planner.spec, name).total_bytes for name in WEIGHT_FORMATS}
    return sorted((name for name, size in sizes.items() if size < planner.weights.total_bytes), key=lambda name: -sizes[name])


def _users(count: int) -> str:
    return f"{count:,} user{'' if count == 1 else 's'}"
