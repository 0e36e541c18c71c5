"""``octavo plan``: what fits on a machine, before anything is loaded.

Owns: the options, and what they mean for a plan. Must not know: any arithmetic.
"""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import FiniteRange
from octavo.config import BLOCK_SIZES, MAX_STEP_TOKENS, EngineConfig, parse_bytes
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from octavo.planner.machines import Machine
    from octavo.planner.model_source import DescribedModel
    from octavo.planner.plan import PlanRequest
    from octavo.planner.weight_sizes import WeightSizes

ENGINE = EngineConfig()  # a plan is made for the engine's own defaults
DOES_NOT_FIT = 1
BLOCK_SIZE = click.Choice(BLOCK_SIZES)
POSITIVE = click.IntRange(min=1)
SPEED = FiniteRange(min=0, min_open=True)
USERS = click.IntRange(1, MAX_STEP_TOKENS)  # each gets a token of a step


@click.command("plan")
@click.argument("model", required=False)
@click.option("--list", "list_models", is_flag=True, help="List the models and machines that are known by name.")
@click.option("--machine", default="this", help="A name that --list shows, or a .toml file.", show_default=True)
@click.option("--memory", metavar="BYTES", help='What the engine may use of each machine\'s memory, e.g. "64GiB".')
@click.option("--weights", metavar="FORMAT", help="Plan for weights in this format: bf16, fp8, nvfp4, mxfp4, q8_0, q4_k_m …")
@click.option("--weight-bytes", metavar="BYTES", help='Size of the weights where it is known, e.g. "18GB".')
@click.option("--kv-dtype", metavar="FORMAT", default=ENGINE.kv_dtype, help="Format of K and V.", show_default=True)
@click.option("--context", type=POSITIVE, metavar="TOKENS", help="Length of each conversation, prompt and answer.")
@click.option("--users", type=USERS, default=1, help="Conversations at once.", show_default=True)
@click.option("--shared-prefix", type=click.IntRange(min=0), default=0, metavar="TOKENS", help="Tokens that all begin with.")
@click.option("--block-size", type=BLOCK_SIZE, default=ENGINE.block_size, help="Tokens per block.", show_default=True)
@click.option("--step-tokens", type=POSITIVE, default=ENGINE.max_num_batched_tokens, help="Tokens per step.", show_default=True)
@click.option("--min-speed", type=SPEED, default=10.0, help="Tokens per second that each user must get.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, sizes in bytes.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Also draw a chart into this .png or .svg file.")
def command(model: str | None, list_models: bool, as_json: bool, plot: Path | None, machine: str, **settings: Any) -> int:
    """Tell what MODEL takes on a machine: its bytes, the largest context, the most users; loads nothing.

    MODEL is a folder, a config.json, a .gguf or .safetensors file, a hub id (headers are read, weights are not), or a name
    that --list shows. The exit status is 1 if what was asked for does not fit.
    """
    if list_models:
        return _print_known()
    if model is None:
        raise click.UsageError("which model?", click.get_current_context())
    return _plan(model, machine, settings, as_json=as_json, plot=plot)


def _plan(model: str, machine_name: str, settings: dict[str, Any], *, as_json: bool, plot: Path | None) -> int:
    from octavo.planner.advice import advise
    from octavo.planner.chart import draw_plan
    from octavo.planner.machines import find_machine
    from octavo.planner.model_source import describe_model
    from octavo.planner.plan import Planner
    from octavo.planner.report import plan_as_json, print_plan

    described = describe_model(model)
    request = _request(settings, described)
    weights, weight_format = _weights(settings, described)
    machine = _limited(find_machine(machine_name), settings["memory"])
    planner = Planner(described.name, described.spec, machine, weights, weight_format, request)
    plan = planner.plan()
    advice = advise(planner, plan)
    if plot is not None:
        draw_plan(plan, plot)
    if as_json:
        click.echo(json.dumps(plan_as_json(plan, advice), indent=2))
    else:
        print_plan(_console(), plan, advice)
    return 0 if plan.fits else DOES_NOT_FIT


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def _request(settings: dict[str, Any], described: "DescribedModel") -> "PlanRequest":
    from octavo.planner.formats import kv_format
    from octavo.planner.plan import PlanRequest

    kv_format(settings["kv_dtype"])
    context, limit = settings["context"], described.spec.max_position
    if context is not None and context > limit:
        raise ConfigError(f"context={context} is more than the model's {limit} positions", hint=f"give at most {limit}")
    shared = settings["shared_prefix"]
    if shared > (limit if context is None else context):
        raise ConfigError(f"shared_prefix={shared} is more than a whole conversation", hint="it is a part of each one's context")
    return PlanRequest(
        kv_dtype=settings["kv_dtype"],
        block_size=settings["block_size"],
        context_tokens=context,
        num_users=settings["users"],
        shared_tokens=settings["shared_prefix"],
        step_tokens=max(settings["step_tokens"], settings["users"]),
        max_num_seqs=max(ENGINE.max_num_seqs, settings["users"]),
        min_tokens_per_s=settings["min_speed"],
    )


def _weights(settings: dict[str, Any], described: "DescribedModel") -> "tuple[WeightSizes, str]":
    from octavo.planner.weight_sizes import sizes_from_headers, sizes_from_parameters, sizes_from_total

    wanted, total = settings["weights"], settings["weight_bytes"]
    if wanted and total:
        raise ConfigError("weights and weight_bytes contradict each other", hint="give one of them")
    if total:
        num_bytes = parse_bytes(total, name="weight_bytes")
        if num_bytes == 0:
            raise ConfigError(f"weight_bytes={total!r}: a model has weights", hint="leave it out to compute them")
        return sizes_from_total(num_bytes), "as given"
    if described.tensors and not wanted:
        return sizes_from_headers(described.tensors), "as stored"
    name = wanted or described.spec.stored_format
    return sizes_from_parameters(described.spec, name), name


def _limited(machine: "Machine", memory: str | None) -> "Machine":
    if memory is None:
        return machine
    limit = parse_bytes(memory, name="memory")
    if limit > machine.available_bytes:
        raise ConfigError(
            f"memory={memory!r} is more than the {machine.available_bytes / 2**30:.2f} GiB available on {machine.name}",
            hint="the size on the box is not what the system has; leave memory out to plan with all of it",
        )
    sources = {**machine.sources, "available": "as given with --memory", "reserve": "none: --memory is all for the engine"}
    return dataclasses.replace(machine, available_bytes=limit, reserve_bytes=0, sources=sources)


def _print_known() -> int:
    from rich.table import Table

    from octavo.planner.machines import THIS, shipped_machines
    from octavo.planner.shipped_models import shipped_models

    table = Table("model", "source of its values")
    for model in shipped_models().values():
        table.add_row(model.name, model.source)
    console = _console()
    console.print(table)
    console.print(f"machines: {', '.join([THIS, *shipped_machines()])}")
    return 0
