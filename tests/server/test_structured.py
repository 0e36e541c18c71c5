"""Structured output: every answer that ends by itself is what was asked for; what cannot be enforced is refused at once."""

import asyncio
import json
import re
import time

import pytest
from openai import OpenAI

from engine.tiny_engine import TinyModels
from octavo.server.grammars import nesting_depth
from server.running import RunningServer, running_server

PROMPT = [65, 66, 67]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def models() -> TinyModels:
    return TinyModels()


@pytest.fixture(scope="module")
def tiny(models: TinyModels):
    with running_server(models.engine(end_token_ids=(0,))) as server:
        yield server
        server.wait_until_idle()


def texts(server: RunningServer, **fields) -> list[str]:
    """Returns the texts of answers that all ended by themselves."""
    response = server.complete(**{"prompt": PROMPT, "max_tokens": 120, "seed": 3} | fields)
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert {choice["finish_reason"] for choice in choices} == {"stop"}, choices
    return [choice["text"] for choice in choices]


def test_schema_by_every_name(tiny: RunningServer) -> None:
    asked = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}},
        {"guided_json": PERSON},
        {"guided_json": json.dumps(PERSON)},
        {"structured_outputs": {"json": PERSON}},
    ]
    answers = [texts(tiny, temperature=0, **fields) for fields in asked]
    assert all(answer == answers[0] for answer in answers)
    person = json.loads(answers[0][0])
    assert set(person) == {"name", "old"} and isinstance(person["old"], bool) and len(person["name"]) <= 8


def test_json_object_through_the_official_client(tiny: RunningServer) -> None:
    client: OpenAI = tiny.openai()
    completion = client.completions.create(
        model="tiny", prompt="x", max_tokens=200, seed=11, temperature=0.5, extra_body={"response_format": {"type": "json_object"}}
    )
    choice = completion.choices[0]
    assert choice.text.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.text), dict)


@pytest.mark.parametrize(
    ("field", "value", "expression"),
    [
        ("regex", r"[a-c]{2,5}-\d{3}", r"[a-c]{2,5}-\d{3}"),
        ("choice", ["red", "green", 'b"lue|'], r'red|green|b"lue\|'),
        ("grammar", 'start: "<" inner ">"\ninner: /[xy]{3}/ | "<" inner ">"', r"<+[xy]{3}>+"),
        ("grammar", 'root ::= "a" [b-d]+ "e"', r"a[b-d]+e"),
    ],
)
def test_other_forms(tiny: RunningServer, field: str, value: object, expression: str) -> None:
    fields = {"n": 4, "temperature": 1.5, "max_tokens": 200}
    for asked in ({f"guided_{field}": value}, {"structured_outputs": {field: value}}):
        for text in texts(tiny, **fields, **asked):
            assert re.fullmatch(expression, text), text


def test_choices_and_streams(tiny: RunningServer) -> None:
    """n choices follow the grammar each on its own; a stream gives the same."""
    fields = {"prompt": PROMPT, "n": 5, "temperature": 1.2, "guided_json": PERSON, "max_tokens": 120, "seed": 9}
    plain = texts(tiny, **fields)
    assert len(set(plain)) > 1
    assert all(set(json.loads(text)) == {"name", "old"} for text in plain)
    streamed = [""] * 5
    for line in tiny.complete(stream=True, **fields).text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                streamed[choice["index"]] += choice["text"]
    assert streamed == plain


def test_end_wins_over_min_tokens(tiny: RunningServer) -> None:
    assert texts(tiny, guided_json={"type": "boolean"}, min_tokens=10)[0] in ("true", "false")


def test_min_tokens_holds_where_the_grammar_can_go_on(tiny: RunningServer) -> None:
    (text,) = texts(tiny, guided_regex="[a-z]{1,30}", min_tokens=20, logit_bias={"0": 50})
    assert len(text) >= 20


def test_pushed_end_tokens_do_not_open_documents(tiny: RunningServer) -> None:
    """The end token, pushed at every step, is taken only where the document is whole; blanks come in bounded runs."""
    assert isinstance(json.loads(texts(tiny, guided_json=PERSON, logit_bias={"0": 50})[0]), dict)
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}
    (text,) = texts(tiny, guided_json=schema, logit_bias={"32": 50, "10": 50, "93": 30, "44": 30}, max_tokens=200)
    assert len(json.loads(text)) == 3
    assert max(map(len, re.findall(r"[ \n]+", text))) <= 20


def test_allowed_tokens_narrow_a_grammar(tiny: RunningServer) -> None:
    assert set(texts(tiny, guided_regex="[a-z]{8}", allowed_token_ids=[0, 97, 98])[0]) <= {"a", "b"}


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1, "logprobs": 2, "n": 2}])
def test_nothing_left_to_choose_ends_the_answer(tiny: RunningServer, fields: dict) -> None:
    body = tiny.complete(prompt=PROMPT, guided_regex="[a-z]{8}", allowed_token_ids=[48], **fields).json()
    assert {(choice["text"], choice["stop_reason"]) for choice in body["choices"]} == {("", "no token is allowed here")}


def test_neighbours_and_preemption_change_nothing(models: TinyModels, tiny: RunningServer) -> None:
    fields = {"prompt": [PROMPT * (3 + number) for number in range(8)], "max_tokens": 150, "temperature": 1, "seed": 4}
    free = {**fields, "ignore_eos": True, "return_token_ids": True}
    expected = texts(tiny, guided_json=PERSON, **fields)
    expected_free = [choice["token_ids"] for choice in tiny.complete(**free).json()["choices"]]
    small = models.engine(end_token_ids=(0,), kv_memory="32 blocks", max_num_seqs=8, max_num_batched_tokens=32)
    with running_server(small) as server:

        async def ask_both():
            async with server.async_openai() as client:
                return await asyncio.gather(
                    client.post("/completions", body={"guided_json": PERSON, **fields}, cast_to=object),
                    client.post("/completions", body=free, cast_to=object),
                )

        bound, unbound = asyncio.run(ask_both())
        assert [choice["text"] for choice in bound["choices"]] == expected
        assert [choice["token_ids"] for choice in unbound["choices"]] == expected_free
        assert server.engine.stats().num_preemptions > 0
        server.wait_until_idle()


DEEP: dict = {"type": "string"}
for _ in range(60):
    DEEP = {"type": "object", "properties": {"a": DEEP}}

WRONG = [
    ("guided_json", {"type": "foo"}),
    ("guided_json", {"properties": {"a": "text"}}),
    ("guided_json", {"$ref": "#/nowhere"}),
    ("guided_json", {"enum": list(range(100_000))}),
    ("guided_json", {"allOf": [{"type": "string"}, {"type": "integer"}]}),
    ("guided_json", {"oneOf": [{"type": "string"}, {"minLength": 1}]}),
    ("guided_json", DEEP),
    ("guided_json", "{"),
    ("guided_json", "[]"),
    ("guided_regex", "("),
    ("guided_regex", "a{2,1}"),
    ("guided_regex", "(?=a)b"),
    ("guided_regex", "(" * 3000 + "a" + ")" * 3000),
    ("guided_grammar", "start: nothing"),
    ("guided_grammar", "start: " + "(" * 60_000),
    ("guided_choice", []),
    ("guided_choice", [""]),
    ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "foo"}}}),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_grammars_are_refused(tiny: RunningServer, field: str, value: object) -> None:
    started = time.monotonic()
    response = tiny.complete(prompt=PROMPT, **{field: value})
    assert time.monotonic() - started < 4
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(field)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_json": PERSON, "stop": ["a"]}, "stop"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_combinations_that_cannot_hold_are_refused(tiny: RunningServer, fields: dict, param: str) -> None:
    response = tiny.complete(prompt=PROMPT, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_odd_schemas_that_work(tiny: RunningServer) -> None:
    assert isinstance(json.loads(texts(tiny, guided_json={}, logit_bias={"125": 60, "0": 60})[0]), dict)
    recursive = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    assert isinstance(json.loads(texts(tiny, guided_json=recursive, logit_bias={"125": 60})[0]), dict)


def test_model_without_end_token_says_so(models: TinyModels) -> None:
    with running_server(models.engine()) as server:
        response = server.complete(prompt=PROMPT, guided_regex="a")
        assert response.status_code == 400 and "end token" in response.json()["error"]["message"]


def test_nesting_depth() -> None:
    assert [nesting_depth(text) for text in ("", "a", "()[]{}", "({[", ")))((")] == [0, 0, 1, 3, 2]
