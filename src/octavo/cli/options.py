"""Command-line options made from the fields of the settings.

Owns: how a dataclass field becomes an option. Must not know: any field by name, other than those a command picks.

Invariants:
1. An option that the user does not give is not passed on, so that a default is written in one place only.
"""

import dataclasses
import inspect
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from octavo.sampling_params import SamplingParams

SAMPLING_FIELDS = ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop", "ignore_eos")


class FiniteRange(click.FloatRange):
    """A number within bounds; infinity and "not a number" are within none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def field_descriptions(record: type) -> dict[str, str]:
    """Returns what the ``Attributes:`` section of a record's docstring says of each field."""
    section = inspect.getdoc(record).partition("Attributes:\n")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in entries}


def _value_type(declared: Any) -> Any:
    """Returns the type of one value: the most general alternative of a union, the elements' type of a tuple."""
    parts = typing.get_args(declared) or (declared,)
    return next(kind for kind in (str, float, int) if kind in parts)


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


def settings_options(settings: type, *, skip: Iterable[str] = ()) -> list[click.Parameter]:
    """Returns one option for each field of a settings class, such as `EngineConfig`, that is not in ``skip``."""
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


def given_settings(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that the user gave for the fields of a settings class."""
    return _given(values, (field.name for field in dataclasses.fields(settings)))


def given_sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that the user gave for the fields of `SamplingParams`."""
    return _given(values, SAMPLING_FIELDS)


def _given(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if values.get(name) not in (None, ())}
