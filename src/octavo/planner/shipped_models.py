"""The models that the planner knows by name.

Owns: reading `models.toml`. Must not know: what the fields mean.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class ShippedModel:
    """One entry of the table.

    Attributes:
        config: the fields of its config.json that memory depends on.
        source: where those values come from.
    """

    name: str
    config: dict[str, Any]
    source: str


@cache
def shipped_models() -> dict[str, ShippedModel]:
    """Returns the table, by name."""
    table = tomllib.loads((files("octavo.planner") / "models.toml").read_text(encoding="utf-8"))
    return {name: ShippedModel(name, entry, entry.pop("source")) for name, entry in table.items()}
