"""The default number of threads."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo.kernels import cpu_count
from octavo.kernels.cpu_count import count_cores, cpu_quota, default_num_threads, read_own_cgroup


@pytest.fixture
def cgroup_root(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    return tmp_path


def default_within(cpus):
    """Returns the default of a thread that may use only ``cpus``."""

    def count():
        os.sched_setaffinity(0, cpus)  # of this thread alone
        return default_num_threads()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(count).result()


def test_default_lies_within_the_affinity_mask():
    allowed = os.sched_getaffinity(0)
    assert 1 <= default_num_threads() <= len(allowed)
    assert default_within({min(allowed)}) == 1


@pytest.mark.parametrize(("granted", "expected"), [("100000", 1), ("20000", 1), ("250000", 2)])
def test_default_lies_within_the_quota(monkeypatch, tmp_path, granted, expected):
    monkeypatch.setattr(cpu_count, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(cpu_count, "count_cores", lambda cpus, topology: 8)
    (tmp_path / "cpu.max").write_text(f"{granted} 100000\n")
    assert default_num_threads() == expected


def test_no_quota_grants_more_than_any_machine_has(cgroup_root):
    (cgroup_root / "a/cpu.max").write_text("max 100000\n")
    assert cpu_quota(cgroup_root, "/a/b") > 10_000


@pytest.mark.parametrize(
    ("outer", "inner", "expected"), [("400000", "150000", 1.5), ("50000", "300000", 0.5), ("200000", "max", 2.0)]
)
def test_the_smallest_quota_on_the_way_up_counts(cgroup_root, outer, inner, expected):
    (cgroup_root / "a/cpu.max").write_text(f"{outer} 100000\n")
    (cgroup_root / "a/b/cpu.max").write_text(f"{inner} 100000\n")
    assert cpu_quota(cgroup_root, "/a/b") == expected


def test_a_cgroup_outside_the_namespace_has_the_root_quota(cgroup_root):
    (cgroup_root / "cpu.max").write_text("250000 100000\n")
    assert cpu_quota(cgroup_root, "/elsewhere/deep") == 2.5


def test_threads_of_one_core_count_once(tmp_path):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        directory = tmp_path / f"cpu{cpu}/topology"
        directory.mkdir(parents=True)
        (directory / "thread_siblings_list").write_text(siblings + "\n")
    assert count_cores({0, 1, 2, 3}, tmp_path) == 2
    assert count_cores({0, 2}, tmp_path) == 1
    assert count_cores({0, 7}, tmp_path) == 2


def test_the_own_cgroup_is_the_root_where_the_system_does_not_tell(tmp_path):
    assert read_own_cgroup(tmp_path / "cgroup") == "/"
    (tmp_path / "cgroup").write_text("0::/user/octavo\n")
    assert read_own_cgroup(tmp_path / "cgroup") == "/user/octavo"
