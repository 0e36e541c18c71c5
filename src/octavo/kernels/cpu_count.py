"""How many threads may compute at once.

Owns: the reading of affinity masks, processor topology and cgroup quotas. Must not know: what the threads do.
"""

import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
TOPOLOGY_ROOT = Path("/sys/devices/system/cpu")


def default_num_threads() -> int:
    """Returns one thread per core that this process may use, within its cgroup's quota; at least 1.

    Two threads on one core share its multipliers, so they gain nothing and wait for each other.
    """
    num_cores = count_cores(os.sched_getaffinity(0), TOPOLOGY_ROOT)
    return max(1, min(num_cores, int(cpu_quota(CGROUP_ROOT, read_own_cgroup(OWN_CGROUP)))))


def read_own_cgroup(file: Path) -> str:
    """Returns the path of the process's cgroup (version 2) as ``/proc/self/cgroup`` gives it; the root without such a file."""
    return file.read_text().strip().rpartition(":")[2] if file.exists() else "/"


def count_cores(cpus: set[int], topology_root: Path) -> int:
    """Returns the number of distinct cores among ``cpus``; every processor counts where the system does not tell."""
    cores = set()
    for cpu in cpus:
        siblings = topology_root / f"cpu{cpu}/topology/thread_siblings_list"
        cores.add(siblings.read_text() if siblings.exists() else cpu)
    return len(cores)


def cpu_quota(cgroup_root: Path, own_cgroup: str) -> float:
    """Returns the processors' worth of time that the cgroup and those above it grant; a huge number without a quota."""
    quota = float(2**31)
    directory = cgroup_root / own_cgroup.lstrip("/")
    for level in (directory, *directory.parents):
        file = level / "cpu.max"
        if file.exists():
            granted, period = file.read_text().split()
            quota = quota if granted == "max" else min(quota, float(granted) / float(period))
        if level == cgroup_root:
            break
    return quota
