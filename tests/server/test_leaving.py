"""Clients that leave, read slowly or take too long leave nothing behind and harm nobody."""

import json
import random
import socket
import time
from typing import Any

import pytest

from server.running import RunningServer, running_server
from server.scripted import answer_of, make_engine

LONG: dict[str, Any] = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True}


def open_request(server: RunningServer, body: dict) -> socket.socket:
    """Sends a request and leaves the answer unread."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def wait_for_requests(server: RunningServer, count: int) -> None:
    deadline = time.monotonic() + 5
    while server.engine.num_unfinished_requests < count:
        assert time.monotonic() < deadline, "the request did not reach the engine"
        time.sleep(0.001)


@pytest.fixture(scope="module")
def slow_server():
    """A server that runs two sequences at once, 5 ms a step."""
    with running_server(make_engine(max_num_seqs=2, step_seconds=0.005)) as server:
        yield server


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("fields", [{}, {"n": 2, "temperature": 1}, {"prompt": ["a", "b", "c"]}, {"prompt": "x" * 100}], ids=str)
def test_gone_client_frees_its_requests(slow_server: RunningServer, streams: bool, fields: dict) -> None:
    connection = open_request(slow_server, {**LONG, **fields, "stream": streams})
    wait_for_requests(slow_server, 1)
    time.sleep(random.uniform(0, 0.05))
    connection.close()
    slow_server.wait_until_idle()


def test_gone_client_in_the_queue_never_starts(slow_server: RunningServer) -> None:
    busy = [open_request(slow_server, LONG) for _ in range(2)]
    wait_for_requests(slow_server, 2)
    queued = open_request(slow_server, {**LONG, "prompt": "queued"})
    wait_for_requests(slow_server, 3)
    queued.close()
    deadline = time.monotonic() + 2
    while slow_server.engine.num_unfinished_requests > 2:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert slow_server.engine.stats().num_running == 2
    for connection in busy:
        connection.close()
    slow_server.wait_until_idle()


def test_half_closed_client_counts_as_gone(slow_server: RunningServer) -> None:
    connection = open_request(slow_server, LONG)
    wait_for_requests(slow_server, 1)
    connection.shutdown(socket.SHUT_WR)
    slow_server.wait_until_idle()
    connection.close()


def test_same_id_again_at_once_after_leaving(slow_server: RunningServer) -> None:
    for round_number in range(30):
        connection = open_request(slow_server, {**LONG, "request_id": "again", "stream": bool(round_number % 2)})
        time.sleep(random.uniform(0, 0.02))
        connection.close()
    deadline = time.monotonic() + 5
    while True:
        response = slow_server.complete(prompt="hello", max_tokens=100, request_id="again")
        if response.status_code == 200:
            break
        assert time.monotonic() < deadline and response.json()["error"]["param"] == "request_id"
    assert response.json()["choices"][0]["text"] == answer_of(b"hello", 0).decode()
    slow_server.wait_until_idle()


def test_neighbour_of_gone_clients_is_unharmed(slow_server: RunningServer) -> None:
    connections = [open_request(slow_server, {**LONG, "stream": True}) for _ in range(4)]
    with slow_server.http.stream(
        "POST", "/v1/completions", json={"prompt": "hello", "max_tokens": 100, "stream": True}
    ) as response:
        for connection in connections:
            connection.close()
        text = "".join(response.iter_text())
    pieces = [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-2]]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == answer_of(b"hello", 0).decode()
    slow_server.wait_until_idle()


def test_slow_reader_is_dropped_and_others_go_on() -> None:
    engine = make_engine(lambda prompt, choice: [], max_model_len=60_000, num_blocks=4096)
    with running_server(engine, max_lag_tokens=50, max_prompts=8) as server:
        connection = open_request(server, {"prompt": "x", "n": 8, "max_tokens": 50_000, "stream": True, "logprobs": 20})
        wait_for_requests(server, 1)
        started = time.monotonic()
        while engine.has_unfinished_requests:
            assert time.monotonic() - started < 15, "the stream of a client that reads nothing goes on"
            response = server.complete(prompt="hello", max_tokens=3)
            assert response.status_code == 200
        server.wait_until_idle()
        connection.settimeout(10)
        with connection, connection.makefile("rb") as received:
            lines = list(iter(received.readline, b"data: [DONE]\n"))
        assert any(b'"code":"slow_reader"' in line for line in lines)
        assert sum(map(len, lines)) < 2**20, "the system keeps more for a slow reader than it was told to"


def test_time_limit_ends_with_what_there_is() -> None:
    with running_server(make_engine(step_seconds=0.02), max_request_seconds=1) as server:
        body = server.complete(**LONG).json()
        assert body["choices"][0]["finish_reason"] == "abort"
        assert 1 < body["usage"]["completion_tokens"] < 400
        text = server.complete(**LONG, stream=True).text
        assert '"finish_reason":"abort"' in text and text.endswith("data: [DONE]\n\n")
        server.wait_until_idle()


def test_time_limit_before_the_first_token_is_an_error() -> None:
    with running_server(make_engine(step_seconds=0.02, max_num_seqs=1), max_request_seconds=1) as server:
        first = open_request(server, {**LONG, "stream": True})
        wait_for_requests(server, 1)
        response = server.complete(prompt="late", n=1)
        first.close()
        assert response.status_code in (200, 503)
        if response.status_code == 503:
            assert response.json()["error"]["code"] == "timeout"
        server.wait_until_idle()


def test_slow_bodies_do_not_hold_up_others() -> None:
    with running_server(read_seconds=1) as server:
        host, port = server.url.removeprefix("http://").split(":")
        slow = [socket.create_connection((host, int(port))) for _ in range(20)]
        for connection in slow[:10]:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
        for connection in slow[10:]:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        started = time.monotonic()
        assert server.complete(prompt="hello").status_code == 200
        assert time.monotonic() - started < 2
        for connection in slow[:10]:
            connection.settimeout(5)
            assert connection.recv(1000) == b"", "a client that never finishes its head keeps its connection"
        slow[10].settimeout(5)
        assert b" 400 " in slow[10].recv(1000)
        for connection in slow:
            connection.close()
        server.wait_until_idle()
