"""How much memory this machine can give to one process now, and why not more.

Owns: the reading of /proc/meminfo, of memory cgroups (versions 1 and 2) and of /proc/pressure/memory, and the default reserve. Must
not know: models, or what the memory is for.

Invariants:
1. Swap counts as nothing.
2. Whatever is subtracted is listed with its reason.
3. A limit of any cgroup above the process counts; the tightest one decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError

PROC = Path("/proc")
CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_FILES = (  # of version 2 and of version 1: the limit, the use, and the part of memory.stat that can be dropped
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
RESERVE_RATIO, MIN_RESERVE_BYTES = 0.06, 2 * 2**30
UNLIMITED_BYTES = 2**62  # version 1 writes "no limit" as a number somewhat below 2**63


@dataclass(frozen=True)
class MemoryStep:
    """One step from what the system calls available to what can be allocated.

    Attributes:
        what: the field or limit, with its size.
        num_bytes: what can be allocated after this step.
        why: the reason for it.
    """

    what: str
    num_bytes: int
    why: str


@dataclass(frozen=True)
class HostMemory:
    """The machine's memory at one moment.

    Attributes:
        total_bytes: what the machine has, whoever uses it; no more than the tightest control group allows altogether.
        allocatable_bytes: what this process can allocate.
        steps: how that figure comes about.
    """

    total_bytes: int
    allocatable_bytes: int
    steps: tuple[MemoryStep, ...]


def default_reserve(total_bytes: int) -> int:
    """Returns what is left to everybody else on a machine of this size unless somebody says otherwise."""
    return max(MIN_RESERVE_BYTES, int(RESERVE_RATIO * total_bytes))


def read_host_memory(proc: Path = PROC, cgroup_root: Path = CGROUP_ROOT) -> HostMemory:
    """Returns what this process can allocate now.

    Raises:
        ConfigError: the system's files lack what is needed.
    """
    meminfo = read_meminfo(proc / "meminfo")
    steps = _huge_page_steps(meminfo) if meminfo.get("HugePages_Total") else _available_steps(meminfo)
    left = steps[-1].num_bytes
    limits = cgroup_limits(proc / "self" / "cgroup", cgroup_root)
    remainder = min((max(0, limit - used) for limit, used in limits), default=left)
    if remainder < left:
        left = remainder
        steps.append(MemoryStep(f"cgroup remainder {format_gib(left)}", left, "a control group above this process allows no more"))
    total = min([meminfo["MemTotal"], *(limit for limit, _ in limits)])
    return HostMemory(total, left, tuple(steps))


def read_meminfo(path: Path) -> dict[str, int]:
    """Returns the fields of a meminfo file, sizes in bytes, counts of pages as they are."""
    fields = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        fields[name] = int(number) * (1024 if unit == "kB" else 1)
    if "MemTotal" not in fields or "MemAvailable" not in fields:
        raise ConfigError(f"{path} has no MemTotal and MemAvailable", hint="plan with --machine and a machine file instead")
    return fields


def _available_steps(meminfo: dict[str, int]) -> list[MemoryStep]:
    available, cma, swap = meminfo["MemAvailable"], meminfo.get("CmaFree", 0), meminfo.get("SwapFree", 0)
    steps = [MemoryStep(f"MemAvailable {format_gib(available)}", available, "free memory and caches that can be dropped")]
    if cma:
        left = max(0, available - cma)
        steps.append(MemoryStep(f"CmaFree {format_gib(cma)} subtracted", left, "counted as available, but it cannot be pinned"))
    if swap:
        steps.append(
            MemoryStep(f"swap {format_gib(swap)} not counted", steps[-1].num_bytes, "weights and KV in swap stop the machine")
        )
    return steps


def _huge_page_steps(meminfo: dict[str, int]) -> list[MemoryStep]:
    size = meminfo["HugePages_Free"] * meminfo["Hugepagesize"]
    why = "with huge pages set aside, allocations of unified memory come from them alone"
    return [MemoryStep(f"free huge pages {format_gib(size)}", size, why)]


def cgroup_limits(own_cgroup: Path, cgroup_root: Path) -> list[tuple[int, int]]:
    """Returns limit and use, in bytes, of every control group that limits a process's memory.

    Args:
        own_cgroup: a file such as ``/proc/self/cgroup``.
    """
    if not own_cgroup.exists():
        return []
    directories = _memory_cgroups(own_cgroup.read_text(), cgroup_root)
    return [pair for directory in directories for pair in _limit_and_use(directory)]


def _memory_cgroups(text: str, root: Path) -> Iterator[Path]:
    """Yields the directories of the process's memory groups, from its own up to the root."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        directory = top / path.lstrip("/")
        yield from (level for level in (directory, *directory.parents) if level == top or top in level.parents)


def _limit_and_use(directory: Path) -> Iterator[tuple[int, int]]:
    """Yields a group's limit and its use without the file pages that can be dropped; nothing where there is no limit."""
    for limit_name, use_name, cache_name in CGROUP_FILES:
        limit_file = directory / limit_name
        if not limit_file.exists():
            continue
        limit = limit_file.read_text().strip()
        if limit == "max" or int(limit) >= UNLIMITED_BYTES:
            continue
        yield int(limit), int((directory / use_name).read_text()) - _stat(directory / "memory.stat", cache_name)


def _stat(path: Path, name: str) -> int:
    if not path.exists():
        return 0
    pairs = (line.split() for line in path.read_text().splitlines())
    return next((int(value) for key, value in pairs if key == name), 0)


def format_gib(num_bytes: int) -> str:
    """Returns a size in words."""
    return f"{num_bytes / 2**30:.2f} GiB"


@dataclass(frozen=True)
class MemoryPressure:
    """How much of the last ten seconds tasks waited for memory, in percent: some of them, or all at once."""

    some_percent: float
    full_percent: float


def read_pressure(proc: Path = PROC) -> MemoryPressure | None:
    """Returns the kernel's figures of stalls, None where it keeps none."""
    try:
        text = (proc / "pressure" / "memory").read_text()
    except OSError:  # absent, or switched off when the kernel was started
        return None
    averages = {line.split()[0]: float(line.split()[1].removeprefix("avg10=")) for line in text.splitlines()}
    return MemoryPressure(averages["some"], averages.get("full", 0.0))
