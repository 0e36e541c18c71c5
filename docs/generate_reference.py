"""Writes the reference pages from the code that they describe.

Usage: python docs/generate_reference.py [--check]        (--check writes nothing and fails when a page is out of date)
"""

import dataclasses
import sys
import types
import typing
from pathlib import Path

from http_reference import http_page
from markdown_table import table

from octavo.cli.options import field_descriptions
from octavo.config import EngineConfig
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.server.app import make_api
from octavo.server.config import ServerConfig

REFERENCE = Path(__file__).parent / "reference"

SETTINGS_INTRO = """# Settings

The fields of `EngineConfig`: keyword arguments of `octavo.LLM`, and options of every command that loads a model
(`kv_memory` is `--kv-memory` there).
"""
SERVER_INTRO = """# Server settings

The options of `octavo serve`, beside the engine's [settings](settings.md) (`max_requests` is `--max-requests`).
"""
SAMPLING_INTRO = """# Sampling parameters

The fields of `octavo.SamplingParams`. Names and meanings are those that users of vLLM know.
"""
BEAMS_INTRO = """## Beam search

The fields of `octavo.BeamSearchParams`. Names and meanings are those that users of transformers know.
"""


def type_name(declared: object) -> str:
    """Returns a type as it is written in source text."""
    if isinstance(declared, types.UnionType):
        return " or ".join(type_name(part) for part in typing.get_args(declared))
    if typing.get_origin(declared):
        return str(declared).replace("collections.abc.", "").replace("typing.", "")
    return "None" if declared is types.NoneType else declared.__name__


def default_text(field: dataclasses.Field) -> str:
    """Returns a field's default as it is written in source text."""
    if field.default is field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default_factory() if field.default is dataclasses.MISSING else field.default
    return f"`{value!r}`"


def settings_page(intro: str, settings: type) -> str:
    """Returns the page about a settings class."""
    rows = []
    for field in dataclasses.fields(settings):
        allowed = ", ".join(f"`{choice}`" for choice in field.metadata["choices"]) or type_name(field.type)
        rows.append((f"`{field.name}`", allowed, default_text(field), field.metadata["unit"], field.metadata["help"]))
    return intro + "\n" + table(("setting", "allowed", "default", "unit", "meaning"), rows)


def sampling_page() -> str:
    """Returns the page about `SamplingParams` and `BeamSearchParams`."""
    return f"{SAMPLING_INTRO}\n{fields_table(SamplingParams)}\n{BEAMS_INTRO}\n{fields_table(BeamSearchParams)}"


def fields_table(parameters: type) -> str:
    """Returns the table of a parameter class, whose docstring describes its fields."""
    described = field_descriptions(parameters)
    rows = (
        (f"`{field.name}`", type_name(field.type), default_text(field), described[field.name])
        for field in dataclasses.fields(parameters)
    )
    return table(("field", "type", "default", "meaning"), rows)


def current_text(name: str) -> str | None:
    """Returns a page as it lies in the folder, None if there is none."""
    path = REFERENCE / name
    return path.read_text(encoding="utf-8") if path.exists() else None


def main() -> int:
    """Writes the pages, or with ``--check`` compares them with what would be written."""
    pages = {
        "settings.md": settings_page(SETTINGS_INTRO, EngineConfig),
        "sampling.md": sampling_page(),
        "server.md": settings_page(SERVER_INTRO, ServerConfig),
        "http.md": http_page(make_api().openapi(), field_descriptions(SamplingParams)),
    }
    stale = [name for name, text in pages.items() if current_text(name) != text]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/reference/{name} is out of date: run python docs/generate_reference.py", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (REFERENCE / name).write_text(pages[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
