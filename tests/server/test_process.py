"""The server as a process: readiness, drain, signals, logs."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.errors import ConfigError
from octavo.server.config import ServerConfig
from octavo.server.http_server import open_sockets
from server.scripted import answer_of

TESTS = Path(__file__).parents[1]
LONG: dict[str, Any] = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True}


class Process:
    """A server process and what it logs."""

    def __init__(self, *arguments: str):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "server" / "serve_scripted.py"), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._ready.wait(30), self.lines
        url = next(line for line in self.lines if "http://" in line).rpartition(" on ")[2].strip()
        self.http = httpx.Client(base_url=url, timeout=20)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "serving" in line:
                self._ready.set()
        self._ready.set()

    def wait(self) -> int:
        code = self.process.wait(20)
        self._reader.join()
        return code


@contextmanager
def serving(*arguments: str) -> Iterator[Process]:
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.http.close()
        process.process.kill()
        process.wait()
        process.process.stderr.close()


def in_background(process: Process, **body: Any) -> tuple[threading.Thread, list[httpx.Response]]:
    """Sends a request from another thread and waits until the server works on it."""
    responses: list[httpx.Response] = []

    def send() -> None:
        with httpx.Client(base_url=process.http.base_url, timeout=20) as client, suppress(httpx.RemoteProtocolError):
            responses.append(client.post("/v1/completions", json=body))

    thread = threading.Thread(target=send)
    thread.start()
    while 'octavo:num_requests_running{model_name="scripted"} 1.0' not in process.http.get("/metrics").text:
        time.sleep(0.01)
    return thread, responses


def wait_for_running(process: Process, count: int) -> None:
    deadline = time.monotonic() + 10
    while f'octavo:num_requests_running{{model_name="scripted"}} {count}.0' not in process.http.get("/metrics").text:
        assert time.monotonic() < deadline, "the server never had so much to do"
        time.sleep(0.01)


def stream_to_the_end(process: Process, **body: Any) -> str | None:
    """Returns the finish reason of a stream that ended as it should; "refused" for one that came too late."""
    with httpx.Client(base_url=process.http.base_url, timeout=20) as client:
        response = client.post("/v1/completions", json={**body, "stream": True})
    if response.status_code == 503:
        return "refused"
    events = response.text.split("\n\n")
    assert events[-2] == "data: [DONE]"
    return json.loads(events[-3].removeprefix("data: "))["choices"][0]["finish_reason"]


@pytest.mark.parametrize("streams", [False, True])
def test_drain_lets_requests_finish_and_refuses_new_ones(streams: bool) -> None:
    with serving("0.003") as process:
        thread, responses = in_background(process, **LONG, stream=streams)
        process.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        refused = process.http.post("/v1/completions", json={"prompt": "new"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert "retry-after" in refused.headers
        assert process.http.get("/ready").status_code == 503
        assert process.http.get("/health").status_code == 200
        thread.join()
        assert process.wait() == 0
        assert '"finish_reason":"length"' in responses[0].text


@pytest.mark.parametrize("streams", [False, True])
def test_drain_deadline_cuts_with_a_finish_reason(streams: bool) -> None:
    with serving("0.05", "drain_seconds=1") as process:
        thread, responses = in_background(process, **LONG, stream=streams)
        started = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        thread.join()
        assert process.wait() == 0
        assert time.monotonic() - started < 5
        assert '"finish_reason":"abort"' in responses[0].text


def test_sigterm_under_load_cuts_no_answer_without_a_reason() -> None:
    with serving("0.01", "drain_seconds=1") as process, ThreadPoolExecutor(40) as clients:
        answers = [
            clients.submit(stream_to_the_end, process, prompt=f"stream {number}", max_tokens=40 + 10 * number, ignore_eos=True)
            for number in range(40)
        ]
        wait_for_running(process, 16)
        process.process.send_signal(signal.SIGTERM)
        reasons = [answer.result() for answer in answers]
        assert process.wait() == 0
        assert {"length", "abort"} <= set(reasons) <= {"length", "abort", "refused"}


def test_a_killed_server_starts_again_at_its_port() -> None:
    with serving("0.01") as process:
        thread, responses = in_background(process, **LONG)
        process.process.kill()
        thread.join()
        assert responses == []
        with serving("0.01", f"port={process.http.base_url.port}") as again:
            assert again.http.get("/ready").status_code == 200
            text = again.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 100}).json()["choices"][0]["text"]
            assert text == answer_of(b"hello", 0).decode()


def test_second_signal_ends_at_once() -> None:
    with serving("0.05") as process:
        thread, responses = in_background(process, **LONG)
        process.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        process.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        assert process.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - started < 1
        thread.join()
        assert responses == []


def test_idle_server_ends_and_costs_no_time() -> None:
    with serving("0") as process:
        process.http.get("/ready")
        before = process_seconds(process.process.pid)
        time.sleep(1.0)
        assert process_seconds(process.process.pid) - before < 0.1
        process.process.send_signal(signal.SIGINT)
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"host": "nope.invalid"}, "host='nope.invalid' cannot be found"),
        ({"host": "192.0.2.1"}, "host='192.0.2.1', port=0 cannot be listened on: Cannot assign requested address"),
    ],
    ids=str,
)
def test_an_address_that_cannot_be_served_on_is_named(fields: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as raised:
        open_sockets(ServerConfig(**{"port": 0, **fields}))
    assert raised.value.hint is not None and "--host" in raised.value.hint


def test_a_port_that_somebody_has_is_named() -> None:
    (first,) = open_sockets(ServerConfig(port=0))
    with first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port={port} cannot be listened on: Address already in use"):
            open_sockets(ServerConfig(port=port))


def process_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_json_log_has_one_object_per_request_and_no_prompts() -> None:
    with serving("0", "log_json=yes") as process:
        body = {"prompt": "secret prompt", "max_tokens": 100, "user": "u\n1", "request_id": "my-id"}
        process.http.post("/v1/completions", json=body)
        process.http.get("/nowhere%0A2")
        process.process.send_signal(signal.SIGTERM)
        process.wait()
        objects = [json.loads(line) for line in process.lines if line.startswith("{")]
        first, second = objects[:2]
        assert first["path"] == "/v1/completions" and first["status"] == 200
        assert (first["request_id"], first["user"], first["prompt_tokens"]) == ("my-id", "u\n1", 13)
        assert (first["completion_tokens"], first["finish_reason"]) == (len(answer_of(b"secret prompt", 0)) + 1, "stop")
        assert second["status"] == 404
        assert "secret" not in "".join(process.lines)


def test_prompts_are_logged_when_asked_for() -> None:
    with serving("0", "log_json=yes", "log_prompts=yes") as process:
        process.http.post("/v1/completions", json={"prompt": "open prompt", "max_tokens": 100})
        process.process.send_signal(signal.SIGTERM)
        process.wait()
        (entry,) = [json.loads(line) for line in process.lines if line.startswith("{")]
        assert entry["prompts"] == ["open prompt"]
        assert entry["answers"] == [answer_of(b"open prompt", 0).decode()]
