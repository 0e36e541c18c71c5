"""octavo.planner.host_memory: what can be allocated is what the system says less what it says wrongly."""

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.planner.host_memory import HostMemory, MemoryPressure, read_host_memory, read_pressure

KIB, GIB = 2**10, 2**30
# A DGX Spark whose kernel keeps 9.3 GiB for its own succession: counted as available, of no use for pinned memory.
SPARK = {"MemTotal": 127_600_592, "MemFree": 40_000_000, "MemAvailable": 121_000_000, "CmaTotal": 0, "CmaFree": 9_750_000}


class Host:
    """Files of /proc and /sys/fs/cgroup in a folder."""

    def __init__(self, folder: Path):
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)

    def write_meminfo(self, fields: dict[str, int], *, counts: dict[str, int] | None = None) -> None:
        lines = [f"{name}:{size:>12} kB" for name, size in fields.items()]
        lines += [f"{name}:{count:>8}" for name, count in (counts or {}).items()]
        (self.proc / "meminfo").write_text("\n".join(lines) + "\n")

    def write_cgroup(self, own: str, files: dict[str, str]) -> None:
        (self.proc / "self" / "cgroup").write_text(own)
        for name, text in files.items():
            path = self.cgroups / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def read(self) -> HostMemory:
        return read_host_memory(self.proc, self.cgroups)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.write_meminfo(SPARK)
    return host


def test_cma_is_subtracted_and_explained(host: Host) -> None:
    memory = host.read()
    assert memory.total_bytes == 127_600_592 * KIB  # 121.69 GiB, not 128
    assert memory.allocatable_bytes == (121_000_000 - 9_750_000) * KIB
    assert [step.what for step in memory.steps] == ["MemAvailable 115.39 GiB", "CmaFree 9.30 GiB subtracted"]
    assert all(step.why for step in memory.steps)


def test_swap_counts_as_nothing_and_is_mentioned(host: Host) -> None:
    without = host.read().allocatable_bytes
    host.write_meminfo({**SPARK, "SwapFree": 16_777_216})
    memory = host.read()
    assert memory.allocatable_bytes == without
    assert memory.steps[-1].what == "swap 16.00 GiB not counted"


def test_huge_pages_replace_what_is_available(host: Host) -> None:
    host.write_meminfo({**SPARK, "Hugepagesize": 2048}, counts={"HugePages_Total": 20_000, "HugePages_Free": 15_000})
    assert host.read().allocatable_bytes == 15_000 * 2048 * KIB


def test_no_huge_pages_change_nothing(host: Host) -> None:
    without = host.read()
    host.write_meminfo({**SPARK, "Hugepagesize": 2048}, counts={"HugePages_Total": 0, "HugePages_Free": 0})
    assert host.read() == without


def test_cgroup_of_version_2_counts_without_its_droppable_files(host: Host) -> None:
    files = {"a/b/memory.max": f"{32 * GIB}\n", "a/b/memory.current": f"{12 * GIB}\n"}
    host.write_cgroup("0::/a/b\n", files | {"a/b/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n", "a/memory.max": "max\n"})
    memory = host.read()
    assert memory.allocatable_bytes == 22 * GIB
    assert memory.steps[-1].what == "cgroup remainder 22.00 GiB"


def test_tightest_group_above_decides(host: Host) -> None:
    files = {"a/b/memory.max": f"{32 * GIB}", "a/b/memory.current": "0", "a/memory.max": f"{8 * GIB}"}
    host.write_cgroup("0::/a/b\n", files | {"a/memory.current": f"{3 * GIB}"})
    memory = host.read()
    assert (memory.allocatable_bytes, memory.total_bytes) == (5 * GIB, 8 * GIB)


def test_namespaced_process_sees_its_limit_at_the_root(host: Host) -> None:
    host.write_cgroup("0::/\n", {"memory.max": f"{4 * GIB}", "memory.current": f"{GIB}"})
    assert host.read().allocatable_bytes == 3 * GIB


def test_cgroup_of_version_1(host: Host) -> None:
    files = {"memory/job/memory.limit_in_bytes": f"{16 * GIB}", "memory/job/memory.usage_in_bytes": f"{6 * GIB}"}
    files["memory/job/memory.stat"] = f"inactive_file 5\ntotal_inactive_file {GIB}\n"
    files["memory/memory.limit_in_bytes"] = "9223372036854771712"
    files["memory/memory.usage_in_bytes"] = f"{9 * GIB}"
    host.write_cgroup("5:cpuset:/other\n4:cpu,memory:/job\n0::/\n", files)
    assert host.read().allocatable_bytes == 11 * GIB


def test_group_over_its_limit_leaves_nothing(host: Host) -> None:
    host.write_cgroup("0::/a\n", {"a/memory.max": f"{GIB}", "a/memory.current": f"{2 * GIB}"})
    assert host.read().allocatable_bytes == 0


def test_wide_limit_changes_nothing(host: Host) -> None:
    without = host.read()
    host.write_cgroup("0::/a\n", {"a/memory.max": f"{500 * GIB}", "a/memory.current": "0"})
    assert host.read() == without


def test_system_without_the_fields_is_refused(host: Host) -> None:
    host.write_meminfo({"MemTotal": 1000})
    with pytest.raises(ConfigError, match="MemAvailable"):
        host.read()


def test_this_machine_can_be_read() -> None:
    memory = read_host_memory()
    assert 0 < memory.allocatable_bytes <= memory.total_bytes


def test_stalls_are_read_and_may_be_absent(host: Host) -> None:
    assert read_pressure(host.proc) is None
    (host.proc / "pressure").mkdir()
    text = "some avg10=12.50 avg60=3.00 avg300=1.00 total=123\nfull avg10=4.25 avg60=1.00 avg300=0.10 total=45\n"
    (host.proc / "pressure" / "memory").write_text(text)
    assert read_pressure(host.proc) == MemoryPressure(12.5, 4.25)
