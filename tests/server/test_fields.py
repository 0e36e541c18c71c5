"""Nothing is accepted and ignored: each field that clients know does something, asks for nothing, or is refused."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import httpx
import pytest
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from engine.tiny_engine import TinyModels
from octavo.models.chat_template import ChatTemplate
from octavo.server.protocol.base import RequestBody
from server.running import RunningServer, running_server

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for message in messages %}{{ message.role }}:{{ message.content }};"
    "{% endfor %}{% if add_generation_prompt %}A:{% endif %}{{ mood }}"
)
REQUEST_ID = "fields"
HELLO = [{"role": "user", "content": "hello"}]
STARTED = [*HELLO, {"role": "assistant", "content": "I"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
CLOCK = {"type": "function", "function": {"name": "clock"}}
FLAT_CLOCK = {"type": "function", "name": "clock"}
ANTHROPIC_CLOCK = {"name": "clock", "input_schema": {"type": "object"}}
ONLY_A = {"logit_bias": {"65": 100}}  # every token is an A
ENDS = {"logit_bias": {"0": 100}}  # the first token ends the answer
FORM = {"type": "json_schema", "schema": SCHEMA}


@dataclass(frozen=True)
class Changes:
    """The field, added to others, changes what is seen; a function makes its value of the answer without it."""

    value: Any
    beside: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Restores:
    """The field undoes what others do."""

    value: Any
    beside: dict[str, Any]


@dataclass(frozen=True)
class Neutral:
    """This value asks for nothing and changes nothing; another one is refused."""

    value: Any
    refused: Any
    beside: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """No value but null is taken."""

    value: Any


@dataclass(frozen=True)
class ShownBy:
    """A test of its own shows what the field does."""

    test: str


Rule = Changes | Restores | Neutral | Refused | ShownBy
MODEL = Neutral("tiny", "other")
SAMPLING: dict[str, Rule] = {
    "frequency_penalty": Changes(2.0),
    "presence_penalty": Changes(2.0),
    "logit_bias": Changes({"65": 100}),
    "max_tokens": Changes(3),
    "model": MODEL,
    "n": Changes(2),
    "seed": Changes(6),
    "stop": Changes("AA", ONLY_A),
    "stream_options": Changes({"include_usage": True}, {"stream": True}),
    "temperature": Changes(0),
    "top_p": Changes(0.05),
    "user": Changes("somebody"),
}
VLLM: dict[str, Rule] = {
    "top_k": Changes(1),
    "min_p": Changes(0.9),
    "repetition_penalty": Changes(1.9),
    "stop_token_ids": Changes([65], ONLY_A),
    "min_tokens": Changes(5, ENDS),
    "ignore_eos": Changes(True, ENDS),
    "include_stop_str_in_output": Changes(True, {**ONLY_A, "stop": "AA"}),
    "skip_special_tokens": Changes(False, {**ENDS, "ignore_eos": True}),
    "prompt_logprobs": Changes(1),
    "allowed_token_ids": Changes([65]),
    "bad_words": Changes(["A"], ONLY_A),
    "priority": Changes(3),
    "cache_salt": ShownBy("test_salts_keep_prefixes_apart"),
    "request_id": Changes("another"),
    "return_token_ids": Changes(True),
    "use_beam_search": Changes(True, {"temperature": 0, "seed": None, "n": 2}),
    "guided_json": Changes(SCHEMA),
    "guided_regex": Changes("[ab]{3}"),
    "guided_choice": Changes(["yes"]),
    "guided_grammar": Changes('start: "yes"'),
    "structured_outputs": Changes({"choice": ["yes"]}),
    "response_format": Changes({"type": "json_object"}),
    "truncate_prompt_tokens": Refused(5),
    "spaces_between_special_tokens": Neutral(False, True),
    "return_tokens_as_token_ids": Neutral(False, True),
}
CHAT: dict[str, Rule] = {
    **SAMPLING,
    **VLLM,
    "messages": Changes([{"role": "user", "content": "bye"}]),
    "max_completion_tokens": Changes(3, {"max_tokens": None}),
    "logprobs": Changes(True),
    "top_logprobs": Changes(3, {"logprobs": True}),
    "tools": Changes([CLOCK]),
    "tool_choice": Changes({"type": "function", "function": {"name": "clock"}}, {"tools": [CLOCK]}),
    "parallel_tool_calls": ShownBy("test_choice_none_and_single_calls"),
    "safety_identifier": Changes("somebody"),
    "add_generation_prompt": Changes(False),
    "continue_final_message": Changes(True, {"messages": STARTED}),
    "chat_template_kwargs": Changes({"mood": "gay"}),
    "echo": Changes(True, {"messages": STARTED, "continue_final_message": True}),
    "audio": Refused({"voice": "alloy", "format": "wav"}),
    "function_call": Neutral("none", "auto"),
    "functions": Neutral([], [{"name": "clock"}]),
    "metadata": Neutral({}, {"a": "b"}),
    "modalities": Neutral(["text"], ["audio"]),
    "moderation": Refused({}),
    "prediction": Refused({"type": "content", "content": "a"}),
    "prompt_cache_key": Refused("key"),
    "prompt_cache_options": Refused({}),
    "prompt_cache_retention": Neutral("in_memory", "24h"),
    "reasoning_effort": Neutral("none", "high"),
    "service_tier": Neutral("auto", "flex"),
    "store": Neutral(False, True),
    "verbosity": Neutral("medium", "low"),
    "web_search_options": Refused({}),
    "chat_template": Refused("{{ messages }}"),
    "documents": Neutral([], [{"title": "a", "text": "b"}]),
}
COMPLETIONS: dict[str, Rule] = {
    **SAMPLING,
    **VLLM,
    "prompt": Changes([1, 2, 3]),
    "best_of": Changes(3),
    "echo": Changes(True),
    "logprobs": Changes(2),
    "suffix": Neutral("", "end"),
}
EMBEDDINGS: dict[str, Rule] = {
    "input": Changes([1, 2, 3]),
    "model": MODEL,
    "dimensions": Changes(8),
    "encoding_format": Changes("base64"),
    "user": Changes("somebody"),
    "pooling": Changes("last"),
}
RESPONSES: dict[str, Rule] = {
    "input": Changes("bye"),
    "model": MODEL,
    "instructions": Changes("be kind"),
    "max_output_tokens": Changes(3),
    "metadata": Changes({"a": "b"}),
    "previous_response_id": Changes(f"resp_{REQUEST_ID}"),
    "background": Changes(True),
    "store": ShownBy("test_not_stored_is_not_found"),
    "temperature": Changes(2),
    "top_p": Restores(1e-9, {"temperature": 2}),
    "text": Changes({"format": {"type": "json_object"}}),
    "tools": Changes([FLAT_CLOCK]),
    "tool_choice": Changes("required", {"tools": [FLAT_CLOCK]}),
    "parallel_tool_calls": ShownBy("test_choice_none_and_single_calls"),
    "user": Changes("somebody"),
    "safety_identifier": Changes("somebody"),
    "stream_options": Neutral({"include_obfuscation": False}, {"include_obfuscation": True}, {"stream": True}),
    "access_programs": Refused({}),
    "background_options": Refused({}),
    "context_management": Refused([{"type": "compaction"}]),
    "conversation": Refused("conv_1"),
    "image": Refused({}),
    "include": Neutral([], ["message.output_text.logprobs"]),
    "max_tool_calls": Refused(1),
    "moderation": Refused({}),
    "prompt": Refused({"id": "pmpt_1"}),
    "prompt_cache_key": Refused("key"),
    "prompt_cache_options": Refused({}),
    "prompt_cache_retention": Neutral("in_memory", "24h"),
    "reasoning": Refused({"effort": "high"}),
    "service_tier": Neutral("auto", "flex"),
    "top_logprobs": Neutral(0, 2),
    "truncation": Neutral("disabled", "auto"),
}
COUNT_TOKENS: dict[str, Rule] = {
    "messages": Changes([{"role": "user", "content": "goodbye"}]),
    "model": MODEL,
    "system": Changes("be kind"),
    "tools": Changes([ANTHROPIC_CLOCK]),
    "tool_choice": Changes({"type": "none"}, {"tools": [ANTHROPIC_CLOCK]}),
    "cache_control": Neutral({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}),
    "output_config": Neutral({"format": FORM}, {"effort": "low"}),
    "speed": Neutral("standard", "fast"),
    "thinking": Neutral({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}),
    "user_profile_id": Refused("profile"),
    "workspace_id": Refused("workspace"),
}
MESSAGES: dict[str, Rule] = {
    **COUNT_TOKENS,
    "max_tokens": Changes(3),
    "metadata": Changes({"user_id": "somebody"}),
    "output_config": Changes({"format": FORM}),
    "stop_sequences": Changes(lambda seen: [seen["content"][0]["text"][0]]),
    "temperature": Changes(2),
    "top_k": Restores(1, {"temperature": 2}),
    "top_p": Restores(1e-9, {"temperature": 2}),
    "container": Refused("container"),
    "diagnostics": Refused({}),
    "inference_geo": Refused("us"),
    "service_tier": Neutral("standard_only", "priority"),
}


@dataclass(frozen=True)
class Endpoint:
    """A path, a request that each field is added to, what the official client can send, and what is said of each field."""

    path: str
    base: dict[str, Any]
    params: type
    rules: dict[str, Rule]


RANDOM = {"max_tokens": 12, "temperature": 0.9, "seed": 5}
MESSAGE = {"model": "tiny", "messages": HELLO}
ENDPOINTS = {
    "chat": Endpoint("/v1/chat/completions", {"messages": HELLO, **RANDOM}, ChatParams, CHAT),
    "completions": Endpoint("/v1/completions", {"prompt": "hello", **RANDOM}, CompletionParams, COMPLETIONS),
    "embeddings": Endpoint("/v1/embeddings", {"input": "hello"}, EmbeddingCreateParams, EMBEDDINGS),
    "responses": Endpoint(
        "/v1/responses", {"input": "hello", "max_output_tokens": 12, "temperature": 0}, ResponseCreateParamsBase, RESPONSES
    ),
    "messages": Endpoint("/v1/messages", {**MESSAGE, "max_tokens": 12, "temperature": 0}, MessageCreateParamsBase, MESSAGES),
    "count_tokens": Endpoint("/v1/messages/count_tokens", MESSAGE, MessageCountTokensParams, COUNT_TOKENS),
}
# Of a response object, what is not only the request's own field given back.
TOLD_BY_RESPONSES = {"id", "status", "output", "usage", "incomplete_details", "metadata"}


@pytest.fixture(scope="module")
def tiny() -> Iterator[RunningServer]:
    engine = TinyModels().engine(end_token_ids=(0,))
    engine.chat_template = ChatTemplate({"default": TEMPLATE})
    with running_server(engine, log_json=True) as server:
        yield server
        server.wait_until_idle()


Observe = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    """What was seen of requests so far: most are compared with the same ones."""
    return {}


@pytest.fixture
def observe(tiny: RunningServer, endpoint: str, caplog: pytest.LogCaptureFixture, seen: dict[str, dict[str, Any]]) -> Observe:
    """Sends a request twice and returns what can be seen of the second, whose prompt is cached."""
    caplog.set_level(logging.INFO, "octavo.access")
    path = ENDPOINTS[endpoint].path

    def send(body: dict[str, Any]) -> httpx.Response:
        response = tiny.http.post(path, json=body, headers={"X-Request-Id": REQUEST_ID})
        assert response.status_code == 200, response.text
        return response

    def see(body: dict[str, Any]) -> dict[str, Any]:
        send(body)
        caplog.clear()
        response = send(body)
        log = wait_for_line(caplog, response.headers["x-request-id"])
        told = read(response.text)
        if endpoint == "responses" and "output" in told:
            told = {name: value for name, value in told.items() if name in TOLD_BY_RESPONSES}
        explanation = tiny.http.get(f"/octavo/requests/{log['request_id']}").json()
        return told | {
            "who": [log.get("user"), log.get("safety_identifier")],
            "priority": None if endpoint == "count_tokens" else explanation.get("priority"),
        }

    def see_once(body: dict[str, Any]) -> dict[str, Any]:
        key = json.dumps([path, body], sort_keys=True)
        if key not in seen:
            seen[key] = see(body)
        return seen[key]

    return see_once


def wait_for_line(caplog: pytest.LogCaptureFixture, request_id: str) -> dict[str, Any]:
    """Returns the access log's line of a request; it is written after the answer, so that those of others may come between."""
    deadline = time.monotonic() + 5
    while True:
        messages = [record.getMessage() for record in caplog.records]
        for line in (json.loads(message) for message in messages if message.startswith("{")):
            if line["request_id"] == request_id and line["method"] == "POST":
                return line
        assert time.monotonic() < deadline, "no line in the access log"
        time.sleep(0.001)


def read(text: str) -> dict[str, Any]:
    """Returns a body, or the events of a stream, without the time."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    body = {"events": events} if events else json.loads(text)
    for part in [body, *events, *(event.get("response", {}) for event in events)]:
        part.pop("created", None)
        part.pop("created_at", None)
    return body


CASES = [(name, field_name) for name, endpoint in ENDPOINTS.items() for field_name in endpoint.rules]


@pytest.mark.parametrize(("endpoint", "name"), CASES, ids=lambda value: value)
def test_a_field_is_honoured_or_refused(tiny: RunningServer, observe: Observe, endpoint: str, name: str) -> None:
    base, rule = ENDPOINTS[endpoint].base, ENDPOINTS[endpoint].rules[name]
    if isinstance(rule, Changes):
        without = observe(base | rule.beside)
        value = rule.value(without) if callable(rule.value) else rule.value
        assert observe(base | rule.beside | {name: value}) != without
    elif isinstance(rule, Restores):
        assert observe(base | rule.beside) != observe(base)
        assert observe(base | rule.beside | {name: rule.value}) == observe(base)
    elif isinstance(rule, Neutral):
        assert observe(base | rule.beside | {name: rule.value}) == observe(base | rule.beside)
        check_refused(tiny, endpoint, rule.beside | {name: rule.refused}, name)
    elif isinstance(rule, Refused):
        check_refused(tiny, endpoint, {name: rule.value}, name)
        assert observe(base | {name: None}) == observe(base)
    else:
        assert any(f"def {rule.test}(" in path.read_text() for path in Path(__file__).parent.glob("test_*.py"))


def check_refused(server: RunningServer, endpoint: str, fields: dict[str, Any], name: str) -> None:
    response = server.http.post(ENDPOINTS[endpoint].path, json=ENDPOINTS[endpoint].base | fields)
    assert response.status_code == (404 if name == "model" else 400), response.text
    assert response.json()["error"]["param"].startswith(name), response.text


def bodies(base: type[RequestBody] = RequestBody) -> set[type[RequestBody]]:
    """Returns the kinds of bodies that a client sends, and of their parts."""
    return {base}.union(*map(bodies, base.__subclasses__()))


@pytest.mark.parametrize("body", sorted(bodies(), key=lambda body: body.__qualname__), ids=lambda body: body.__qualname__)
def test_every_field_that_may_be_left_out_may_be_null(body: type[RequestBody]) -> None:
    optional = {name: item.annotation for name, item in body.model_fields.items() if not item.is_required()}
    assert [name for name, allowed in optional.items() if NoneType not in (allowed, *get_args(allowed))] == []


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_field_of_the_official_client_has_a_rule(endpoint: str) -> None:
    assert set(get_type_hints(ENDPOINTS[endpoint].params)) - set(ENDPOINTS[endpoint].rules) == set()
