"""``/v1/messages`` through Anthropic's official client."""

import asyncio
from typing import Any

import anthropic
import pytest

from server.running import RunningServer, running_server
from server.scripted import MODEL_NAME, answer_of, make_engine
from server.test_tools import ANSWER, PARAMETERS, TEMPLATE

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
EXPECTED = answer_of(b"user: helloassistant: ", 0).decode()
TOOLS: Any = [{"name": "weather", "input_schema": PARAMETERS}, {"name": "clock", "input_schema": {"type": "object"}}]


def client_of(server: RunningServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=20)


@pytest.fixture(scope="module")
def calling():
    with running_server(
        make_engine(lambda prompt, choice: [*ANSWER.encode(), 256], template=TEMPLATE, max_model_len=2000)
    ) as server:
        yield server
        server.wait_until_idle()


def test_plain_and_streamed(server: RunningServer) -> None:
    with client_of(server) as client:
        plain = client.messages.create(model=MODEL_NAME, max_tokens=100, messages=HELLO)
        with client.messages.stream(model=MODEL_NAME, max_tokens=100, messages=HELLO) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
    assert plain.content[0].type == "text" and plain.content[0].text == text == EXPECTED
    assert [block.model_dump() for block in final.content] == [block.model_dump() for block in plain.content]
    assert final.stop_reason == plain.stop_reason == "end_turn"
    assert plain.role == "assistant" and plain.model == MODEL_NAME
    counts = [(m.usage.input_tokens + (m.usage.cache_read_input_tokens or 0), m.usage.output_tokens) for m in (plain, final)]
    assert counts[0] == counts[1] and counts[0][1] == len(EXPECTED) + 1


def test_async_client_and_count_tokens(server: RunningServer) -> None:
    async def ask() -> tuple[anthropic.types.Message, int]:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0, timeout=20) as client:
            message = await client.messages.create(model=MODEL_NAME, max_tokens=9, messages=HELLO, system="be kind")
            counted = await client.messages.count_tokens(model=MODEL_NAME, messages=HELLO, system="be kind")
            return message, counted.input_tokens

    message, num_tokens = asyncio.run(ask())
    assert num_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 9


def test_stop_sequences(server: RunningServer) -> None:
    with client_of(server) as client:
        message = client.messages.create(model=MODEL_NAME, max_tokens=100, messages=HELLO, stop_sequences=[":0"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", ":0")
    assert message.content[0].text == EXPECTED.split(":0")[0]


def test_answers_continue_the_assistants_text(server: RunningServer) -> None:
    messages: Any = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Well, "}]}]
    with client_of(server) as client:
        message = client.messages.create(model=MODEL_NAME, max_tokens=100, messages=messages)
    assert message.content[0].text == answer_of(b"user: helloassistant: Well, ", 0).decode()


def test_tools_plain_and_streamed(calling: RunningServer) -> None:
    fields: Any = {"model": MODEL_NAME, "max_tokens": 300, "messages": HELLO, "tools": TOOLS}
    with client_of(calling) as client:
        plain = client.messages.create(**fields)
        with client.messages.stream(**fields) as stream:
            final = stream.get_final_message()
        single = client.messages.create(**fields, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.type for block in plain.content] == ["text", "tool_use", "tool_use"]
    assert plain.content[1].input == {"place": "Oslo"} and plain.content[2].name == "clock"
    assert plain.stop_reason == final.stop_reason == "tool_use"
    without_ids = [[{**block.model_dump(), "id": ""} for block in message.content] for message in (plain, final)]
    assert without_ids[0] == without_ids[1]
    assert [block.type for block in single.content] == ["text", "tool_use"]


def test_results_of_calls_reach_the_template(calling: RunningServer) -> None:
    messages: Any = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "clock", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "and?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    with client_of(calling) as client:
        counted = client.messages.count_tokens(model=MODEL_NAME, messages=messages)
    assert counted.input_tokens == len('user: hello.assistant: {"name": "clock", "arguments": {}}.tool: noon.user: and?.')


WRONG: list[tuple[dict, str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}] * 10_001}]}, "messages"),
    ({"tools": [TOOLS[0]] * 129}, "tools"),
    ({"messages": [{"role": "system", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
        "messages[0].content[0]",
    ),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"n": 2}, "n"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ({"max_tokens": 600}, "max_tokens"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}}, "output_config.format"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:50])
def test_wrong_messages_are_refused(server: RunningServer, fields: dict, param: str) -> None:
    response = server.http.post("/v1/messages", json={"model": MODEL_NAME, "max_tokens": 5, "messages": HELLO, **fields})
    assert response.status_code == 400
    assert response.json()["type"] == "error" and response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["param"].startswith(param), response.text


def test_unknown_model_is_the_clients_not_found_error(server: RunningServer) -> None:
    with client_of(server) as client, pytest.raises(anthropic.NotFoundError, match="no model"):
        client.messages.create(model="other", max_tokens=5, messages=HELLO)
