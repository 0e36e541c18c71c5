"""A server that loses its machine's memory to another process: it gives way, and goes on with the same answers."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from octavo.planner.host_memory import read_host_memory
from physical_memory import process_bytes

TESTS = Path(__file__).parents[1]
MIB = 2**20
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")  # version 1, version 2
LIMIT_NAMES = "memory.limit_in_bytes", "memory.max"
HOG = "import sys; held = bytearray(b'x') * int(sys.argv[1]); print('holding', flush=True); sys.stdin.read()"
PROMPTS = [[1 + (31 * index + place) % 250 for place in range(240)] for index in range(40)]


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Makes a control group with a limit; skips the test where that is not allowed."""
    for parent, limit_name in zip(MEMORY_GROUPS, LIMIT_NAMES, strict=True):
        group = parent / f"octavo-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit_name).write_text(str(limit_bytes))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    pytest.skip("no control group can be made here")


def start(command: list[str], group: Path | None) -> subprocess.Popen:
    """Starts a process, inside the group if there is one."""
    if group is not None:
        command = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group), *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


@contextmanager
def ended(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Server:
    """A server process that is up."""

    def __init__(self, process: subprocess.Popen):
        self.pid = process.pid
        self.lines: list[str] = []
        ready = threading.Event()

        def read() -> None:
            for line in process.stderr:
                self.lines.append(line)
                if "serving" in line:
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        assert ready.wait(120) and process.poll() is None, self.lines
        url = next(line for line in self.lines if "http://" in line).rpartition(" on ")[2].strip()
        self.http = httpx.Client(base_url=url, timeout=120)

    def answers(self, prompts: list[list[int]]) -> list[list[int]]:
        body = {"prompt": prompts, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        response = self.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        return [choice["token_ids"] for choice in response.json()["choices"]]

    def metric(self, name: str) -> float:
        found = re.search(rf"^octavo:{re.escape(name)} (\S+)$", self.http.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def committed_bytes(self) -> float:
        return self.metric('memory_bytes{kind="kv_committed",model_name="tiny"}')


def check_giving_way(server: Server, group: Path | None, hog_bytes: int) -> None:
    server.answers(PROMPTS[:1])
    empty = process_bytes(server.pid)
    expected = server.answers(PROMPTS)
    full = process_bytes(server.pid)
    assert full - empty > 30 * MIB and server.committed_bytes() > 30 * MIB
    with ended(start([sys.executable, "-c", HOG, str(hog_bytes)], group)) as hog:
        assert hog.stdout.readline() == "holding\n"
        deadline = time.monotonic() + 60
        while server.committed_bytes() > 2 * MIB:
            assert time.monotonic() < deadline, "the pool did not give way"
            time.sleep(0.1)
        assert full - process_bytes(server.pid) > 30 * MIB, "the pages are still in memory"
        assert server.metric('memory_actions_total{action="drop_blocks",model_name="tiny"}') > 0
        assert server.answers(PROMPTS[:6]) == expected[:6]
    assert any("memory: drop blocks" in line for line in server.lines)
    assert server.answers(PROMPTS[6:12]) == expected[6:12]


def test_hog_in_the_same_control_group() -> None:
    with memory_group(700 * MIB) as group:
        command = [sys.executable, str(TESTS / "server" / "serve_tiny.py"), "memory_reserve=200MiB", "kv_memory=100MiB"]
        with ended(start(command, group)) as process:
            server = Server(process)
            remaining = 700 * MIB - process_bytes(process.pid)
            with server.http:
                check_giving_way(server, group, remaining - 180 * MIB)


def test_hog_beside_the_server() -> None:
    reserve = read_host_memory().allocatable_bytes - 1024 * MIB
    if reserve < 2048 * MIB:
        pytest.skip("this machine has no memory to spare for a hog")
    command = [sys.executable, str(TESTS / "server" / "serve_tiny.py"), f"memory_reserve={reserve}", "kv_memory=100MiB"]
    with ended(start(command, None)) as process:
        server = Server(process)
        with server.http:
            check_giving_way(server, None, 1536 * MIB)
