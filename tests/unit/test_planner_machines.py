"""octavo.planner.machines: descriptions are complete, and no machine has the memory that its box promises."""

from pathlib import Path

import pytest

import octavo.planner.machines as machines
from octavo.errors import ConfigError
from octavo.kernels.cpu import MachineRates
from octavo.planner.host_memory import HostMemory, MemoryStep
from octavo.planner.machines import find_machine, parse_machine, shipped_machines

GIB = 2**30
VALUES = {"total": "64GiB", "available": "60GiB", "reserve": "4GiB", "overhead": "1GiB", "bandwidth": "200GB"}


@pytest.mark.parametrize("name", shipped_machines())
def test_shipped_machines_have_sources_for_every_value(name: str) -> None:
    machine = find_machine(name)
    assert set(machine.sources) == shipped_machines()[name].keys() - {"sources"}
    assert 0 < machine.usable_bytes < machine.available_bytes <= machine.total_bytes


@pytest.mark.parametrize("name", ["dgx-spark", "dgx-spark-x2"])
def test_spark_is_what_it_reports(name: str) -> None:
    machine = find_machine(name)
    assert machine.total_bytes == 130_663_006_208
    assert round(machine.total_bytes / GIB, 2) == 121.69
    assert machine.usable_bytes < 116 * GIB


def test_no_shipped_machine_is_planned_on_128_gib() -> None:
    assert all(find_machine(name).total_bytes < 128 * GIB for name in shipped_machines())


def test_machine_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "desk.toml"
    path.write_text("\n".join(f'{key} = "{value}"' for key, value in VALUES.items()))
    machine = find_machine(str(path))
    assert (machine.name, machine.usable_bytes, machine.bandwidth) == ("desk", 56 * GIB, 200 * 10**9)


@pytest.mark.parametrize("missing", VALUES)
def test_missing_value_is_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"missing {missing}"):
        parse_machine("desk", {key: value for key, value in VALUES.items() if key != missing})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cores": 8}, "unknown cores"),
        ({"available": "65GiB"}, "at most total"),
        ({"bandwidth": "0"}, "above 0"),
        ({"total": "lots"}, "total='lots'"),
        ({"nodes": 0}, "nodes=0"),
        ({"nodes": True}, "nodes=True"),
        ({"reserve": "64GiB"}, "leave nothing"),
        ({"overhead": "64GiB"}, "leave nothing"),
        ({"sources": "me"}, "not a table of texts"),
        ({"sources": {"total": 3}}, "not a table of texts"),
    ],
)
def test_wrong_value_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_machine("desk", VALUES | changes)


def test_unknown_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="'dgx-spork'"):
        find_machine("dgx-spork")


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "desk.toml").write_text("total = ")
    with pytest.raises(ConfigError, match=r"desk\.toml cannot be read"):
        find_machine(str(tmp_path / "desk.toml"))


def test_this_machine_is_measured_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    step = MemoryStep("MemAvailable 20.00 GiB", 20 * GIB, "free memory and caches that can be dropped")
    monkeypatch.setattr(machines, "read_host_memory", lambda: HostMemory(40 * GIB, 20 * GIB, (step,)))
    monkeypatch.setattr(machines, "probe_machine", lambda _num_threads: MachineRates(50.0, 1.0, 0.0, 0.0))
    machine = find_machine("this")
    assert (machine.total_bytes, machine.available_bytes, machine.bandwidth) == (40 * GIB, 20 * GIB, 50 * 10**9)
    assert machine.reserve_bytes == int(0.06 * 40 * GIB)
    assert "MemAvailable 20.00 GiB" in machine.sources["available"]
