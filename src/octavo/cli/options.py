"""Command-line options made from the fields of the settings.

Owns: how a dataclass field becomes an option. Must not know: any field by name, other than those a command picks.

Invariants:
1. An option that the user does not give is not passed on, so that a default is written in one place only.
"""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from octavo.config import EngineConfig
from octavo.sampling_params import SamplingParams

SAMPLING_FIELDS = ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop", "ignore_eos")


def field_descriptions(record: type) -> dict[str, str]:
    """Returns what the ``Attributes:`` section of a record's docstring says of each field."""
    section = inspect.getdoc(record).partition("Attributes:\n")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in entries}


def _alternatives(declared: Any) -> tuple[Any, ...]:
    """Returns the types that a value of the declared type may have, ``None`` left out."""
    union = isinstance(declared, types.UnionType)
    return tuple(kind for kind in typing.get_args(declared) if kind is not types.NoneType) if union else (declared,)


def _value_type(declared: Any) -> Any:
    """Returns the click type of a value: the most general of its alternatives."""
    return next(kind for kind in (str, float, int) if kind in _alternatives(declared))


def _option(field: dataclasses.Field, description: str, *, unit: str = "", choices: tuple = ()) -> click.Option:
    flag = "--" + field.name.replace("_", "-")
    if field.type is bool:
        return click.Option([f"{flag}/--no{flag[1:]}"], default=None, help=f"{description}  [default: {_shown(field.default)}]")
    return click.Option(
        [flag],
        type=click.Choice(choices) if choices else _value_type(field.type),
        metavar=None if choices else (unit.upper() or None),
        multiple=field.default == (),
        default=None,
        help=description + ("" if field.default in (None, ()) else f"  [default: {_shown(field.default)}]"),
    )


def _shown(default: Any) -> str:
    return {True: "yes", False: "no"}[default] if isinstance(default, bool) else str(default)


def engine_options(*, skip: Iterable[str] = ()) -> list[click.Parameter]:
    """Returns one option for each field of `EngineConfig` that is not in ``skip``."""
    return settings_options(EngineConfig, skip=skip)


def settings_options(settings: type, *, skip: Iterable[str] = ()) -> list[click.Parameter]:
    """Returns one option for each field of a settings class that is not in ``skip``."""
    wanted = [field for field in dataclasses.fields(settings) if field.name not in skip]
    return [
        _option(field, field.metadata["help"], unit=field.metadata["unit"], choices=field.metadata["choices"]) for field in wanted
    ]


def sampling_options() -> list[click.Parameter]:
    """Returns one option for each field of `SamplingParams` in `SAMPLING_FIELDS`."""
    described = field_descriptions(SamplingParams)
    by_name = {field.name: field for field in dataclasses.fields(SamplingParams)}
    return [_option(by_name[name], _sentence(described[name])) for name in SAMPLING_FIELDS]


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].replace("`", "")


def with_options(*options: click.Parameter) -> Callable[[click.Command], click.Command]:
    """Returns a decorator that appends options to a command."""

    def append(command: click.Command) -> click.Command:
        command.params.extend(options)
        return command

    return append


def given(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of ``names`` that the user gave."""
    return {name: values[name] for name in names if values.get(name) not in (None, ())}


def engine_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that belong to `EngineConfig`."""
    return given(values, (field.name for field in dataclasses.fields(EngineConfig)))


def sampling_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that belong to `SamplingParams`."""
    return given(values, SAMPLING_FIELDS)
