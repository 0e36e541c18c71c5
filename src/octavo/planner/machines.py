"""The machines that a plan is made for: shipped ones, those of a user's file, and this one.

Owns: reading machine descriptions. Must not know: models.

Invariants:
1. The memory of a machine is what its system reports, in bytes; a nominal size is never used.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from octavo.config import parse_bytes
from octavo.errors import ConfigError
from octavo.kernels.cpu import probe_machine
from octavo.kernels.cpu_count import default_num_threads
from octavo.planner.host_memory import MIN_RESERVE_BYTES, RESERVE_RATIO, default_reserve, read_host_memory

THIS = "this"
SIZES = ("total", "available", "reserve", "overhead", "bandwidth")


@dataclass(frozen=True)
class Machine:
    """Memory and speed of one machine, or of each of several equal ones.

    Attributes:
        total_bytes: what the system reports as its memory.
        available_bytes: what a process can get of it.
        reserve_bytes: left free for everybody else.
        overhead_bytes: what an engine takes beside weights, KV cache and workspace; None = what this engine's process takes.
        bandwidth: bytes read per second.
        nodes: machines that divide the model.
        sources: where each value comes from, by its name.
    """

    name: str
    total_bytes: int
    available_bytes: int
    reserve_bytes: int
    overhead_bytes: int | None
    bandwidth: int
    nodes: int = 1
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def usable_bytes(self) -> int:
        """What the engine may take altogether."""
        return max(0, self.available_bytes - self.reserve_bytes)


def find_machine(name: str) -> Machine:
    """Returns a machine by its name, "this", or the path of a TOML file.

    Raises:
        ConfigError: there is no such machine or file, or the file is wrong.
    """
    if name == THIS:
        return measure_machine()
    if name in shipped_machines():
        return parse_machine(name, shipped_machines()[name])
    path = Path(name)
    if path.suffix == ".toml":
        try:
            return parse_machine(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
            raise ConfigError(f"the machine file {path} cannot be read: {cause}") from cause
    names = ", ".join([THIS, *shipped_machines()])
    raise ConfigError(f"machine={name!r} is not known", hint=f"give one of {names}, or a .toml file")


@cache
def shipped_machines() -> dict[str, dict[str, Any]]:
    """Returns the shipped descriptions, by name."""
    return tomllib.loads((files("octavo.planner") / "machines.toml").read_text(encoding="utf-8"))


def parse_machine(name: str, values: Mapping[str, Any]) -> Machine:
    """Returns the machine that a description's values make.

    Raises:
        ConfigError: a key is missing, unknown, or no size.
    """
    missing, unknown = set(SIZES) - values.keys(), values.keys() - {*SIZES, "nodes", "sources"}
    if missing or unknown:
        raise ConfigError(
            f"machine {name!r}: {'missing' if missing else 'unknown'} {', '.join(sorted(missing or unknown))}",
            hint=f"a machine has {', '.join(SIZES)}, and may have nodes and sources",
        )
    nodes = values.get("nodes", 1)
    if type(nodes) is not int or nodes < 1:
        raise ConfigError(f"machine {name!r}: nodes={nodes!r} is not a whole number of at least 1")
    total, available, reserve, overhead, bandwidth = (parse_bytes(values[key], name=key) for key in SIZES)
    if available > total or bandwidth == 0:
        raise ConfigError(f"machine {name!r}: available={available} must be at most total={total}, and bandwidth above 0")
    if reserve + overhead >= available:
        raise ConfigError(f"machine {name!r}: reserve={reserve} and overhead={overhead} leave nothing of available={available}")
    sources = values.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(source, str) for source in sources.values()):
        raise ConfigError(f"machine {name!r}: sources={sources!r} is not a table of texts")
    return Machine(name, total, available, reserve, overhead, bandwidth, nodes, sources)


def measure_machine() -> Machine:
    """Returns this machine: its memory as the system tells it now, its bandwidth as the engine's probe measures it."""
    memory = read_host_memory()
    rates = probe_machine(default_num_threads())
    return Machine(
        name=THIS,
        total_bytes=memory.total_bytes,
        available_bytes=memory.allocatable_bytes,
        reserve_bytes=default_reserve(memory.total_bytes),
        overhead_bytes=None,
        bandwidth=int(rates.read_gb_per_s * 1e9),
        sources={
            "total": "MemTotal, or the limit of a control group where that is lower",
            "available": "; ".join(f"{step.what}: {step.why}" for step in memory.steps),
            "reserve": f"{RESERVE_RATIO:.0%} of the memory, at least {MIN_RESERVE_BYTES / 2**30:.0f} GiB, for everybody else",
            "overhead": "libraries, tokenizer and server of this engine, as they were measured for other models",
            "bandwidth": "measured now by reading memory with every thread",
        },
    )
