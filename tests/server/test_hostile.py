"""What an attacker would try: after each a plain request is answered right within two seconds, and no block is held."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from engine.tiny_engine import TinyModels
from octavo.models.chat_template import ChatTemplate
from server.running import RunningServer, running_server

BODY = json.dumps({"prompt": "abc", "max_tokens": 5}).encode()
MESSAGES = [{"role": "user", "content": "x"}]
TEMPLATE = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{{ messages[0].content }}"
PLAIN = {"prompt": "hello", "max_tokens": 5, "temperature": 0}


@pytest.fixture(scope="module")
def tiny() -> Iterator[RunningServer]:
    engine = TinyModels().engine(end_token_ids=(0,))
    engine.chat_template = ChatTemplate({"default": TEMPLATE})
    with running_server(engine, read_seconds=2) as server:
        yield server


@pytest.fixture(scope="module")
def right_answer(tiny: RunningServer) -> str:
    return tiny.complete(**PLAIN).json()["choices"][0]["text"]


@pytest.fixture(autouse=True)
def _server_stays_well(tiny: RunningServer, right_answer: str) -> Iterator[None]:
    yield
    started = time.monotonic()
    assert tiny.complete(**PLAIN).json()["choices"][0]["text"] == right_answer
    assert time.monotonic() - started < 2
    tiny.wait_until_idle()


def request(*headers: str, body: bytes = BODY, length: object = None, line: str = "POST /v1/completions HTTP/1.1") -> bytes:
    """Returns a request; ``length`` is its Content-Length, the body's if not given, none if False."""
    lines = [line, "Host: x", "Content-Type: application/json", *headers]
    if length is not False:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def get(path: str, *headers: str) -> bytes:
    return request(*headers, line=f"GET {path} HTTP/1.1", body=b"", length=False)


CHUNKED = "Transfer-Encoding: chunked"
SMUGGLED = b"0\r\n\r\n" + get("/health")
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZQ==", "Sec-WebSocket-Version: 13")
# What is sent, and the statuses that come back, in their order.
RAW: dict[str, tuple[bytes, list[int]]] = {
    "pipelined": (request() * 3, [200, 200, 200]),
    "length and chunks": (request(CHUNKED, body=SMUGGLED), [400]),
    "length, chunks and a bad request id": (request(CHUNKED, "X-Request-Id: caf\xe9", body=SMUGGLED), [400]),
    "two lengths": (request("Content-Length: 3"), [400]),
    "body as it is": (request("Content-Encoding: Identity"), [200]),
    "negative length": (request(length=-1), [400]),
    "signed length": (request(length="+5"), [400]),
    "length of thirty digits": (request(length=10**30), [400]),
    "length of odd digits": (request(length="\xb2"), [400]),
    "length too short": (request(length=5), [400]),
    "chunks": (request(CHUNKED, length=False, body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)), [200]),
    "chunk without a size": (request(CHUNKED, length=False, body=b"zz\r\nhello\r\n"), [400]),
    "negative chunk": (request(CHUNKED, length=False, body=b"-5\r\nhello\r\n"), [400]),
    "unknown transfer encoding": (request("Transfer-Encoding: gzip", length=False), [400]),
    "compressed body": (request("Content-Encoding: gzip"), [400]),
    "header of a megabyte": (request("X-A: " + "a" * 2**20), [400]),
    "header without a colon": (request("garbage"), [400]),
    "header with NUL": (request("X-A: a\0b"), [400]),
    "request id in Latin-1": (request("X-Request-Id: caf\xe9"), [400]),
    "key of odd bytes": (request("Authorization: Bearer \xff\xfe"), [200]),
    "HTTP 0.9": (b"GET /\r\n\r\n", [400]),
    "TLS": (bytes.fromhex("16030100c8010000c40303") + b"x" * 200, [400]),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", [400]),
    "empty lines": (b"\r\n" * 1000, [400]),
    "NULs": (b"\0" * 1000, [400]),
    "another server's address": (get("http://evil.example/health"), [404]),
    "CONNECT": (request(line="CONNECT evil.example:443 HTTP/1.1", body=b"", length=False), [404]),
    "TRACE": (request(line="TRACE /v1/models HTTP/1.1", body=b"", length=False), [405]),
    "OPTIONS": (request("Origin: http://e", line="OPTIONS /v1/completions HTTP/1.1", body=b"", length=False), [405]),
    "HEAD": (request(line="HEAD /v1/models HTTP/1.1", body=b"", length=False), [405]),
    "web socket": (get("/v1/completions", *UPGRADE), [405]),
    "100-continue": (request("Expect: 100-continue"), [100, 200]),
    "path with NUL": (get("/v1/models/%00"), [404]),
    "path of broken escapes": (get("/v1/models/%zz%ff%fe"), [404]),
    "path with dots": (get("/v1/../../etc/passwd"), [404]),
    "path with hidden dots": (get("/octavo/requests/..%2f..%2fetc%2fpasswd"), [404]),
    "path of bytes": (get("/v1/models/\xe9"), [400]),
    "form": (request().replace(b"application/json", b"multipart/form-data; boundary=x"), [400]),
    "UTF-16": (request(body="{}".encode("utf-16")), [400]),
    "byte order mark": (request(body=b"\xef\xbb\xbf" + BODY), [400]),
}


@pytest.mark.parametrize("name", RAW)
def test_odd_http(tiny: RunningServer, name: str) -> None:
    data, statuses = RAW[name]
    host, port = tiny.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        with suppress(ConnectionError):  # a server that has heard enough closes
            connection.sendall(data)
        received = b""
        with suppress(ConnectionError):
            while statuses_in(received) != statuses and (piece := connection.recv(65536)):
                received += piece
        assert statuses_in(received) == statuses, received


def statuses_in(received: bytes) -> list[int]:
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("name", ["length and chunks", "length, chunks and a bad request id"])
def test_nothing_is_answered_after_a_request_of_two_lengths(tiny: RunningServer, name: str) -> None:
    host, port = tiny.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(RAW[name][0])
        received = b""
        while piece := connection.recv(65536):
            received += piece
        assert statuses_in(received) == [400] and b"ambiguous_length" in received


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
COMPLETIONS: dict[str, tuple[dict[str, Any], int]] = {
    "expression with exponentially many states": ({"guided_regex": "(a|b)*a(a|b){40}z"}, 200),
    "expression that backtracks": ({"guided_regex": "(x+x+)+y"}, 200),
    "repetitions of repetitions": ({"guided_regex": "((a{1,100}){1,100}){1,100}"}, 200),
    "long repetition": ({"guided_regex": "a{1,100000}b"}, 200),
    "thousands of alternatives": ({"guided_regex": "|".join(f"w{number}[a-z]*{number}" for number in range(3000))}, 200),
    "classes of all letters": ({"guided_regex": r"\p{L}{1,5000}x"}, 200),
    "complement of exponentially many states": ({"guided_grammar": "start: T\nT: /[a-z]{1,200}/ & ~/.*(a|b).{20}c.*/"}, 200),
    "grammar that is ambiguous": ({"guided_grammar": 'start: x\nx: x x x | x x | "a"+ | ""'}, 200),
    "schema of many alternatives": ({"guided_json": {"allOf": [{"anyOf": [nested(j) for j in range(3)]} for _ in range(8)]}}, 200),
    "schema that means itself": ({"guided_json": LOOP}, 200),
    "schema that is elsewhere": ({"guided_json": {"$ref": "http://127.0.0.1:1/x.json"}}, 400),
    "schema of a long text": ({"guided_json": {"type": "string", "minLength": 10**9}}, 200),
    "schema of a long list": ({"guided_json": {"type": "array", "items": {"type": "string"}, "minItems": 10**6}}, 200),
    "schema of tiny steps": ({"guided_json": {"type": "number", "multipleOf": 1e-300}}, 400),
    "the same choice a thousand times": ({"guided_choice": ["a"] * 1024}, 200),
    "stop strings of odd characters": ({"stop": ["\0", "\ud7ff", "e\u0301", "\U0010ffff" * 256]}, 200),
    "bad words of a thousand tokens": ({"bad_words": ["a" * 1024] * 16}, 200),
    "no token is likely": ({"logit_bias": {str(token): -100 for token in range(256)}}, 200),
    "tokens that are named often": ({"allowed_token_ids": [*range(256)] * 400, "stop_token_ids": [*range(1, 256)] * 400}, 200),
    "sixteen answers": ({"n": 16, "max_tokens": 100, "stream": True}, 200),
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_odd_completions(tiny: RunningServer, name: str) -> None:
    fields, status = COMPLETIONS[name]
    response = tiny.complete(**{"prompt": "abc", "max_tokens": 30, **fields})
    assert response.status_code == status, response.text


CHATS: dict[str, tuple[dict[str, Any], int]] = {
    "tool of a quote": ({"tools": [tool('a"b')]}, 400),
    "tool of two lines": ({"tools": [tool("a\n")]}, 400),
    "tools of one name": ({"tools": [tool("a"), tool("a")]}, 400),
    "tools that fill the model": ({"tools": [tool(f"t{number}", parameters=nested(2)) for number in range(128)]}, 400),
    "tool of no object": ({"tools": [tool("a", parameters={"type": "array"})], "tool_choice": "required"}, 200),
    "tool that is not there": ({"tools": [tool("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}}, 400),
    "template without its messages": ({"chat_template_kwargs": {"messages": []}}, 400),
    "template of deep variables": ({"chat_template_kwargs": {"x": nested(60)}}, 200),
    "characters that are not seen": ({"messages": [{"role": "user", "content": "\u202e\u200b\ufeff\U0010ffff\0"}]}, 200),
    "name of NUL": ({"messages": [{"role": "user", "content": "a", "name": "\0"}]}, 400),
}


@pytest.mark.parametrize("name", CHATS)
def test_odd_chats(tiny: RunningServer, name: str) -> None:
    fields, status = CHATS[name]
    response = tiny.chat(**{"messages": MESSAGES, "max_tokens": 30, **fields})
    assert response.status_code == status, response.text
