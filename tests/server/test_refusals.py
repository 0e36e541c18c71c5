"""Every wrong request is refused with its field's name, before anything of a stream is sent, and the server goes on."""

import json
import time
from typing import Any

import pytest

from server.running import RunningServer
from server.scripted import VOCAB_SIZE, answer_of

HELLO = [{"role": "user", "content": "hello"}]
HUGE = 10**30
IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}

WRONG_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [[-1]]}, "prompt"),
    ({"prompt": [VOCAB_SIZE]}, "prompt"),
    ({"prompt": [2**31]}, "prompt"),
    ({"prompt": [2**63]}, "prompt"),
    ({"prompt": [HUGE]}, "prompt"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": [[1], [2, None]]}, "prompt[1][1]"),
    ({"prompt": None}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": ["a"] * 257}, "prompt"),
    ({"prompt": "x" * 600}, "prompt"),
    ({"prompt": [1] * 10**6}, "prompt"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**12}, "max_tokens"),
    ({"max_tokens": HUGE}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 508}, "max_tokens"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 17}, "n"),
    ({"n": 10**6}, "n"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 0}, "best_of"),
    ({"best_of": 17}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": 10**9}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"logit_bias": {str(VOCAB_SIZE): 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {"abc": 1}}, "logit_bias.abc"),
    ({"logit_bias": {"5": 1e39}}, "logit_bias"),
    ({"logit_bias": {"5": None}}, "logit_bias.5"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": "x" * 1025}, "stop"),
    ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [VOCAB_SIZE]}, "allowed_token_ids"),
    ({"allowed_token_ids": [113], "bad_words": ["q"]}, "allowed_token_ids"),
    ({"bad_words": ["x"] * 17}, "bad_words"),
    ({"priority": 2**70}, "priority"),
    ({"request_id": "x" * 10**6}, "request_id"),
    ({"request_id": "a b"}, "request_id"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"user": 1}, "user"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"stream": True, "stream_options": {"x": True}}, "stream_options.x"),
    ({"suffix": "end"}, "suffix"),
    ({"truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
    ({"store": True}, "store"),
    ({"metadata": {"a": "b"}}, "metadata"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"guess": 1}, "guess"),
    ({"model": 5}, "model"),
]

WRONG_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "x", "audio": {}}]}, "messages[0].audio"),
    (
        {"messages": [{"role": "user", "content": [IMAGE]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": HELLO * 10_001}, "messages"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"max_completion_tokens": -4}, "max_completion_tokens"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"echo": True}, "echo"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"modalities": ["audio"]}, "modalities[0]"),
    ({"functions": [{}]}, "functions"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"prediction": {"type": "content"}}, "prediction"),
    ({"best_of": 2}, "best_of"),
    ({"verbosity": "low"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
]

NEUTRAL_CHAT_FIELDS: dict[str, Any] = {
    "store": False,
    "metadata": {},
    "service_tier": "auto",
    "modalities": ["text"],
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "functions": [],
    "function_call": "none",
    "response_format": {"type": "text"},
    "logit_bias": {},
    "stop": None,
    "n": 1,
    "reasoning_effort": "none",
    "verbosity": "medium",
    "use_beam_search": False,
    "stream_options": None,
}


def check_error(body: dict, param: str | None) -> None:
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["param"] == param, body
    assert body["error"]["message"] and len(body["error"]["message"]) < 3000


def check_alive(server: RunningServer) -> None:
    """A plain request is answered right within two seconds."""
    started = time.monotonic()
    body = server.complete(prompt="hello", max_tokens=100).json()
    assert body["choices"][0]["text"] == answer_of(b"hello", 0).decode()
    assert time.monotonic() - started < 2


def short(value: Any) -> str:
    return json.dumps(value)[:60] if isinstance(value, dict) else str(value)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("fields", "param"), WRONG_COMPLETIONS, ids=short)
def test_wrong_completion_is_refused(server: RunningServer, fields: dict, param: str, streams: bool) -> None:
    extra = {"stream": True} if streams and "stream_options" not in fields else {}
    response = server.complete(**{"prompt": "hello", **extra, **fields})
    assert response.status_code == 400, response.text
    assert response.headers["content-type"] == "application/json"
    check_error(response.json(), param)


@pytest.mark.parametrize(("fields", "param"), WRONG_CHATS, ids=short)
def test_wrong_chat_is_refused(server: RunningServer, fields: dict, param: str) -> None:
    response = server.chat(**{"messages": HELLO, **fields})
    assert response.status_code == 400, response.text
    check_error(response.json(), param)


@pytest.mark.parametrize("name", NEUTRAL_CHAT_FIELDS)
def test_neutral_values_are_taken(server: RunningServer, name: str) -> None:
    response = server.chat(messages=HELLO, **{name: NEUTRAL_CHAT_FIELDS[name]})
    assert response.status_code == 200, response.text


def test_wrong_requests_leave_the_server_well(server: RunningServer) -> None:
    for fields, _ in WRONG_COMPLETIONS:
        server.complete(**{"prompt": "hello", **fields})
    check_alive(server)


RAW_BODIES = {
    "empty": b"",
    "not json": b"hello",
    "truncated": b'{"prompt": "hel',
    "trailing": b'{"prompt": "a"} x',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "Infinity": b'{"prompt": "a", "temperature": Infinity}',
    "1e400": b'{"prompt": "a", "temperature": 1e400}',
    "lone surrogate": rb'{"prompt": "\ud800"}',
    "lone low surrogate": rb'{"prompt": "\udc00 x"}',
    "bad utf-8": b'{"prompt": "\xff"}',
    "10^4 deep": b'{"prompt": ' + b"[" * 10_000,
    "10^5 deep": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "long number": b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}",
    "list": b"[1, 2]",
    "string": b'"hello"',
    "null": b"null",
}


@pytest.mark.parametrize("name", RAW_BODIES)
def test_malformed_bodies_are_refused(server: RunningServer, name: str) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        response = server.http.post(path, content=RAW_BODIES[name], headers={"Content-Type": "application/json"})
        assert response.status_code == 400, (path, response.text)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    check_alive(server)


def test_other_content_types_are_refused_with_the_reason(server: RunningServer) -> None:
    response = server.http.post("/v1/completions", content=b'{"prompt": "a"}', headers={"Content-Type": "text/plain"})
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{"temperature": value} for value in (1e-45, 1e-30, 0, -0.0, 2, 1e6, 1e30)] + [{"top_p": 1e-9}])
def test_extreme_values_that_are_allowed(server: RunningServer, fields: dict) -> None:
    assert server.complete(prompt="hello", **fields).status_code == 200


def test_bodies_up_to_the_limit(server: RunningServer) -> None:
    response = server.http.post("/v1/completions", content=b" " * (9 * 2**20), headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    check_error(response.json(), None)
    check_alive(server)


def test_a_body_without_a_length_is_limited_too(server: RunningServer) -> None:
    def pieces():
        for _ in range(100):
            yield b" " * 2**20

    response = server.http.post("/v1/completions", content=pieces(), headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    check_alive(server)


def test_unknown_model_and_paths(server: RunningServer) -> None:
    response = server.complete(prompt="a", model="other")
    assert response.status_code == 404
    check_error(response.json(), "model")
    response = server.http.get("/v1/nothing")
    assert response.status_code == 404
    check_error(response.json(), None)
    response = server.http.get("/v1/completions")
    assert response.status_code == 405
    check_error(response.json(), None)


def test_context_overflow_names_the_true_numbers(server: RunningServer) -> None:
    message = server.complete(prompt="x" * 500, max_tokens=13).json()["error"]["message"]
    assert all(number in message for number in ("500", "13", "512"))


def test_same_request_id_twice_at_once(server: RunningServer) -> None:
    body = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True, "request_id": "twice"}
    with server.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as first:
        assert first.status_code == 200
        second = server.complete(**body)
        assert second.status_code == 400
        check_error(second.json(), "request_id")
        assert "data: [DONE]" in "".join(first.iter_text())
    assert server.complete(**body).status_code == 200


def test_long_texts_are_refused_unread_and_hold_up_nobody(server: RunningServer) -> None:
    for body in ({"prompt": "a b " * 10**6}, {"messages": [{"role": "user", "content": "x" * 4 * 10**6}]}):
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        started = time.monotonic()
        response = server.http.post(path, json=body)
        assert response.status_code == 400 and time.monotonic() - started < 2
        check_error(response.json(), next(iter(body)))
    check_alive(server)
