"""``/v1/responses`` through the official client."""

import asyncio
import time
from typing import Any

import openai
import pytest

from octavo.server.errors import ApiError
from octavo.server.keys import ANONYMOUS, ApiKey
from octavo.server.protocol.responses import ResponseObject
from octavo.server.response_store import MAX_RESPONSES, ResponseStore, StoredResponse
from server.running import RunningServer, running_server
from server.scripted import MODEL_NAME, answer_of, make_engine
from server.test_tools import ANSWER, PARAMETERS, TEMPLATE

EXPECTED = answer_of(b"user: helloassistant: ", 0).decode()
TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": PARAMETERS},
    {"type": "function", "name": "clock", "parameters": {}},
]


@pytest.fixture(scope="module")
def calling():
    with running_server(
        make_engine(lambda prompt, choice: [*ANSWER.encode(), 256], template=TEMPLATE, max_model_len=2000)
    ) as server:
        yield server
        server.wait_until_idle()


@pytest.fixture
def slow():
    with running_server(make_engine(lambda prompt, choice: [], step_seconds=0.02)) as server:
        yield server
        server.wait_until_idle()


def test_plain_streamed_and_retrieved(server: RunningServer) -> None:
    client = server.openai()
    plain = client.responses.create(model=MODEL_NAME, input="hello")
    assert plain.output_text == EXPECTED and plain.status == "completed"
    with client.responses.stream(model=MODEL_NAME, input=[{"role": "user", "content": "hello"}]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == EXPECTED
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == EXPECTED and final.usage and plain.usage
    assert final.usage.output_tokens == plain.usage.output_tokens == len(EXPECTED) + 1
    for response in (plain, final):
        assert client.responses.retrieve(response.id).output_text == EXPECTED


def test_async_client_continues_a_conversation(server: RunningServer) -> None:
    async def ask() -> tuple[str, Any]:
        async with server.async_openai() as client:
            first = await client.responses.create(model=MODEL_NAME, input="hello", instructions="be kind")
            second = await client.responses.create(model=MODEL_NAME, input="more", previous_response_id=first.id)
            return second.output_text, await client.responses.input_items.list(second.id)

    text, items = asyncio.run(ask())
    first = answer_of(b"system: be kinduser: helloassistant: ", 0)
    assert text == answer_of(b"user: helloassistant: " + first + b"user: moreassistant: ", 0).decode()
    assert [item.content[0].text for item in items.data] == ["more"]


def test_limits_and_formats(server: RunningServer) -> None:
    response = server.openai().responses.create(model=MODEL_NAME, input="hello", max_output_tokens=3, metadata={"a": "b"})
    assert response.status == "incomplete" and response.incomplete_details and response.metadata == {"a": "b"}
    assert response.incomplete_details.reason == "max_output_tokens" and response.output_text == EXPECTED[:3]


def test_tools(calling: RunningServer) -> None:
    client = calling.openai()
    plain = client.responses.create(model=MODEL_NAME, input="hello", tools=TOOLS)
    with client.responses.stream(model=MODEL_NAME, input="hello", tools=TOOLS) as stream:
        final = stream.get_final_response()
    for response in (plain, final):
        assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
        assert response.output[1].arguments == '{"place": "Oslo"}' and response.output_text == "I look."
    output: Any = {"type": "function_call_output", "call_id": plain.output[1].call_id, "output": "rain"}
    second = client.responses.create(
        model=MODEL_NAME, input=[output], previous_response_id=plain.id, tools=TOOLS, max_output_tokens=2
    )
    assert second.previous_response_id == plain.id


def test_background_and_cancel(slow: RunningServer) -> None:
    client = slow.openai()
    response = client.responses.create(model=MODEL_NAME, input="hello", background=True)
    assert response.status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="in_progress"):
        client.responses.create(model=MODEL_NAME, input="more", previous_response_id=response.id)
    assert client.responses.cancel(response.id).status == "cancelled"
    slow.wait_until_idle()
    assert client.responses.retrieve(response.id).status == "cancelled"


def test_background_answers_are_kept(server: RunningServer) -> None:
    client = server.openai()
    response = client.responses.create(model=MODEL_NAME, input="hello", background=True)
    deadline = time.monotonic() + 5
    while (found := client.responses.retrieve(response.id)).status == "in_progress":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert found.output_text == EXPECTED and client.responses.cancel(response.id).status == "completed"
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_client_that_leaves_cancels(slow: RunningServer) -> None:
    with slow.openai().responses.create(model=MODEL_NAME, input="hello", stream=True) as stream:
        created: Any = next(iter(stream))
    slow.wait_until_idle()
    deadline = time.monotonic() + 2
    while slow.openai().responses.retrieve(created.response.id).status != "cancelled":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_not_stored_is_not_found(server: RunningServer) -> None:
    client = server.openai()
    response = client.responses.create(model=MODEL_NAME, input="hello", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=MODEL_NAME, input="a", previous_response_id=response.id)


def test_store_is_bounded_and_knows_whose_it_is() -> None:
    store = ResponseStore()
    for number in range(MAX_RESPONSES + 1):
        response = ResponseObject(id=str(number), created_at=0, model="m", temperature=1, top_p=1, parallel_tool_calls=True)
        store.add(StoredResponse(response, ANONYMOUS, [], []))
    assert store.find("1", ANONYMOUS, "id").response.id == "1"
    for response_id, key in (("0", ANONYMOUS), ("1", ApiKey("other"))):
        with pytest.raises(ApiError):
            store.find(response_id, key, "id")


WRONG: list[tuple[dict, str]] = [
    ({"input": []}, "input"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "b", "arguments": "["}]}, "input"),
    ({"input": "x" * 600}, "input"),
    ({"max_output_tokens": 600}, "max_output_tokens"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "nothing"}}}}, "text.format"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ({"background": True, "stream": True}, "background"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"reasoning": {"effort": "high"}}, "reasoning"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:50])
def test_wrong_requests_are_refused(server: RunningServer, fields: dict, param: str) -> None:
    response = server.http.post("/v1/responses", json={"input": "hello", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)
