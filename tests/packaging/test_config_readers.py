"""Nothing is accepted that is not honoured: every field of the settings is read somewhere outside its own module."""

import ast
import dataclasses
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.sampling_params import SamplingParams
from octavo.server.config import ServerConfig

SOURCE = Path(__file__).parents[2] / "src" / "octavo"


def attributes_read(*, outside: str) -> set[str]:
    """Returns every attribute name that some module of the package other than ``outside`` or the command line reads."""
    paths = [path for path in SOURCE.rglob("*.py") if path.name != outside and "cli" not in path.parts]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in paths)
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


@pytest.mark.parametrize(
    ("settings", "module"),
    [(EngineConfig, "config.py"), (SamplingParams, "sampling_params.py"), (ServerConfig, "config.py")],
)
def test_every_field_has_a_reader(settings: type, module: str) -> None:
    fields = {field.name for field in dataclasses.fields(settings)}
    assert not fields - attributes_read(outside=module)


def test_engine_config_stays_small() -> None:
    assert len(dataclasses.fields(EngineConfig)) <= 20
