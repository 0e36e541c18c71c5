"""Tools through the official client."""

import asyncio
import json
from typing import Any

import pytest

from engine.tiny_engine import TinyModels
from octavo.models.chat_template import ChatTemplate
from server.running import RunningServer, running_server
from server.scripted import MODEL_NAME, make_engine

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}.{% endfor %}"
)
PARAMETERS = {
    "type": "object",
    "properties": {"place": {"$ref": "#/$defs/place"}},
    "required": ["place"],
    "additionalProperties": False,
    "$defs": {"place": {"enum": ["Rome", "Oslo"]}},
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": PARAMETERS}}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
ANSWER = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def scripted():
    with running_server(
        make_engine(lambda prompt, choice: [*ANSWER.encode(), 256], template=TEMPLATE, max_model_len=2000)
    ) as server:
        yield server
        server.wait_until_idle()


@pytest.fixture(scope="module")
def tiny():
    engine = TinyModels().engine(end_token_ids=(0,))
    engine.chat_template = ChatTemplate({"default": "{% if tools %}<tool_call>{% endif %}{{ messages[0].content }}"})
    with running_server(engine) as server:
        yield server
        server.wait_until_idle()


def test_calls_plain_and_streamed(scripted: RunningServer) -> None:
    client = scripted.openai()
    plain = client.chat.completions.create(model=MODEL_NAME, messages=HELLO, tools=[WEATHER, CLOCK]).choices[0]
    assert plain.finish_reason == "tool_calls"
    assert plain.message.content == "I look."
    calls = plain.message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", '{"place": "Oslo"}'), ("clock", "{}")]
    with client.chat.completions.stream(model=MODEL_NAME, messages=HELLO, tools=[WEATHER, CLOCK]) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and final.message.content == "I look."
    assert [(call.function.name, call.function.arguments) for call in final.message.tool_calls or []] == [
        (call.function.name, call.function.arguments) for call in calls
    ]
    assert len({call.id for call in calls}) == 2


def test_async_client_gets_arguments_in_parts(scripted: RunningServer) -> None:
    async def ask() -> list[str]:
        async with scripted.async_openai() as client:
            stream = await client.chat.completions.create(model=MODEL_NAME, messages=HELLO, tools=[WEATHER, CLOCK], stream=True)
            deltas = [chunk.choices[0].delta async for chunk in stream]
        return [call.function.arguments for delta in deltas for call in delta.tool_calls or [] if call.index == 0 and call.function]

    parts = asyncio.run(ask())
    assert "".join(parts) == '{"place": "Oslo"}' and len(parts) > 5


def test_choice_none_and_single_calls(scripted: RunningServer) -> None:
    none = scripted.chat(messages=HELLO, tools=[WEATHER], tool_choice="none").json()["choices"][0]
    assert none["message"]["content"] == ANSWER and none["message"]["tool_calls"] is None and none["finish_reason"] == "stop"
    single = scripted.chat(messages=HELLO, tools=[WEATHER, CLOCK], parallel_tool_calls=False).json()["choices"][0]
    assert [call["function"]["name"] for call in single["message"]["tool_calls"]] == ["weather"]


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_forced_calls_fit_their_schemas(tiny: RunningServer, temperature: float) -> None:
    fields = {"messages": HELLO, "tools": [WEATHER, CLOCK], "max_tokens": 240, "temperature": temperature, "seed": 1}
    named = {"type": "function", "function": {"name": "weather"}}
    choice = tiny.chat(**fields, tool_choice=named).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather" and json.loads(call["function"]["arguments"])["place"] in ("Rome", "Oslo")
    required = tiny.chat(**{**fields, "tools": [WEATHER]}, tool_choice="required", parallel_tool_calls=False).json()["choices"][0]
    (call,) = required["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["place"] in ("Rome", "Oslo")


@pytest.mark.parametrize(("arguments", "read"), [("null", "{}"), ("", "{}"), ("{}", "{}"), (None, "{}"), ('{"a": 1}', '{"a": 1}')])
def test_past_calls_reach_the_template(scripted: RunningServer, arguments: str | None, read: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": arguments}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "noon"}]
    tokens = scripted.http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    expected = f'user: hello.assistant: {{"name": "clock", "arguments": {read}}}.tool: noon.'
    assert bytes(tokens).decode() == expected
    assert scripted.chat(messages=messages, tools=[CLOCK], max_tokens=3).status_code == 200


CALL = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
WRONG = [
    ({"tools": [CLOCK, CLOCK]}, "tools"),
    ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [CLOCK], "tool_choice": "required", "stop": ["a"]}, "stop"),
    ({"tools": [CLOCK], "response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    (
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "foo"}}}], "tool_choice": "required"},
        "tools",
    ),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "a", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
    *(
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "a", "arguments": arguments}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        )
        for arguments in ("[]", "{", "3")
    ),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:60])
def test_wrong_tools_are_refused(tiny: RunningServer, fields: dict, param: str) -> None:
    response = tiny.chat(**{"messages": HELLO, "max_tokens": 2} | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_template_without_tools_says_so(server: RunningServer) -> None:
    response = server.chat(messages=HELLO, tools=[CLOCK])
    assert response.status_code == 400 and "knows no tools" in response.json()["error"]["message"]
