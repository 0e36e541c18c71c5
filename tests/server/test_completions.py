"""``/v1/completions``: every field, plain and as a stream."""

import json
from itertools import groupby
from typing import Any

import pytest

from octavo.server.protocol.completions import CompletionResponse
from server.running import RunningServer, running_server
from server.scripted import END, answer_of, make_engine, text_script


def text_of(prompt: str, choice: int = 0) -> str:
    return answer_of(prompt.encode(), choice).decode()


def stream(server: RunningServer, **fields: Any) -> list[dict]:
    """Returns the chunks of a stream, checked for their form."""
    response = server.complete(stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    for chunk in chunks:
        CompletionResponse.model_validate(chunk, extra="forbid")
    return chunks


def join(chunks: list[dict]) -> dict[int, dict]:
    """Puts the choices of a stream together."""
    joined: dict[int, dict] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            into = joined.setdefault(choice["index"], {"text": "", "finish_reason": None, "token_ids": [], "tokens": []})
            assert into["finish_reason"] is None, "a choice went on after its end"
            into["text"] += choice["text"]
            into["finish_reason"] = choice.get("finish_reason")
            into["token_ids"] += choice.get("token_ids") or []
            into["tokens"] += (choice.get("logprobs") or {}).get("tokens", [])
    return joined


FIELDS = [
    {},
    {"max_tokens": 1},
    {"max_tokens": 5},
    {"max_tokens": 100},
    {"max_tokens": 100, "n": 3},
    {"max_tokens": 100, "stop": "o"},
    {"max_tokens": 100, "stop": ["l", ":0"]},
    {"max_tokens": 100, "stop": "ol", "include_stop_str_in_output": True},
    {"max_tokens": 100, "stop_token_ids": [ord("e")]},
    {"max_tokens": 100, "ignore_eos": True},
    {"max_tokens": 100, "echo": True},
    {"max_tokens": 0, "echo": True},
    {"max_tokens": 0, "echo": True, "logprobs": 2},
    {"max_tokens": 100, "echo": True, "logprobs": 2, "n": 2},
    {"max_tokens": 100, "logprobs": 0},
    {"max_tokens": 100, "prompt": ["hello", "ho", "x" * 70, "y"], "n": 2},
    {"max_tokens": 100, "prompt": [104, 105]},
    {"max_tokens": 100, "prompt": [[104, 105], [106]], "echo": True},
    {"max_tokens": 100, "skip_special_tokens": False, "include_stop_str_in_output": True},
    {"max_tokens": 100, "temperature": 0},
    {"max_tokens": 100, "seed": 7, "user": "alice", "priority": -3, "cache_salt": "s"},
]


@pytest.mark.parametrize("fields", FIELDS, ids=json.dumps)
def test_stream_equals_plain_equals_decoded_tokens(server: RunningServer, fields: dict) -> None:
    fields = {"prompt": "hello", "return_token_ids": True, **fields}
    plain = server.complete(**fields).json()
    chunks = stream(server, stream_options={"include_usage": True}, **fields)
    streamed = join(chunks)
    assert sorted(streamed) == [choice["index"] for choice in plain["choices"]]
    for choice in plain["choices"]:
        other = streamed[choice["index"]]
        assert other["text"] == choice["text"]
        assert other["finish_reason"] == choice["finish_reason"] is not None
        assert other["token_ids"] == choice["token_ids"]
        assert other["tokens"] == (choice["logprobs"] or {}).get("tokens", [])
        if not fields.get("stop") and not fields.get("echo"):
            shown = [token for token in choice["token_ids"] if token != END or "skip_special_tokens" in fields]
            if choice["stop_reason"] is not None:
                shown = shown[:-1]
            decoded = server.http.post("/detokenize", json={"tokens": shown}).json()["prompt"]
            assert choice["text"] == decoded
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    usage["prompt_tokens_details"] = plain["usage"]["prompt_tokens_details"]  # the second of the two finds its prompt cached
    assert usage == plain["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_usage_counts_each_prompt_once_and_the_end_token(server: RunningServer) -> None:
    body = server.complete(prompt=["hello", "ho"], n=3, max_tokens=100, temperature=1).json()
    expected = 3 * len(text_of("hello") + text_of("ho")) + 6
    assert body["usage"]["prompt_tokens"] == 7
    assert body["usage"]["completion_tokens"] == expected
    assert body["usage"]["total_tokens"] == 7 + expected


@pytest.mark.parametrize(("max_tokens", "reason"), [(1, "length"), (2, "length"), (11, "length"), (12, "stop"), (20, "stop")])
def test_length_is_counted_to_the_token(server: RunningServer, max_tokens: int, reason: str) -> None:
    body = server.complete(prompt="hello", max_tokens=max_tokens).json()
    assert body["choices"][0]["text"] == text_of("hello")[:max_tokens]
    assert body["choices"][0]["finish_reason"] == reason
    assert body["usage"]["completion_tokens"] == min(max_tokens, 12)


def test_default_is_16_tokens(server: RunningServer) -> None:
    body = server.complete(prompt="x" * 30, max_tokens=None).json()
    assert body["usage"]["completion_tokens"] == 16


def test_indices_tell_the_prompt(server: RunningServer) -> None:
    prompts = ["x" * 70, "abc", "y" * 12, "z"]
    body = server.complete(prompt=prompts, n=2, max_tokens=100).json()
    expected = [text_of(prompt, choice) for prompt in prompts for choice in range(2)]
    assert [choice["text"] for choice in body["choices"]] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(8))


def test_cached_tokens_are_reported(server: RunningServer) -> None:
    first = server.complete(prompt="p" * 40, max_tokens=1).json()
    second = server.complete(prompt="p" * 40, max_tokens=1).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert 24 <= second["usage"]["prompt_tokens_details"]["cached_tokens"] <= 39


def test_salts_keep_prefixes_apart(server: RunningServer) -> None:
    server.complete(prompt="s" * 40, max_tokens=1, cache_salt="a")
    other = server.complete(prompt="s" * 40, max_tokens=1, cache_salt="b").json()
    same = server.complete(prompt="s" * 40, max_tokens=1, cache_salt="a").json()
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert same["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_logprobs_have_one_entry_per_token(server: RunningServer) -> None:
    body = server.complete(prompt="hello", max_tokens=100, logprobs=2, echo=True).json()
    choice = body["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"] == "hello" + text_of("hello")
    assert len({len(logprobs[name]) for name in logprobs}) == 1
    assert logprobs["token_logprobs"][:2] == [None, -ord("e") / 100]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"e": -1.01, "f": -102.0}
    assert logprobs["text_offset"] == list(range(17))


def test_prompt_logprobs(server: RunningServer) -> None:
    body = server.complete(prompt="hello", max_tokens=1, prompt_logprobs=0).json()
    entries = body["choices"][0]["prompt_logprobs"]
    assert entries[0] is None
    assert [list(entry) for entry in entries[1:]] == [[str(ord(letter))] for letter in "ello"]
    assert entries[1][str(ord("e"))] == {"logprob": -1.01, "rank": 1, "decoded_token": "e"}


def test_prompt_logprobs_with_a_warm_cache_cover_the_prompt(server: RunningServer) -> None:
    server.complete(prompt="w" * 40, max_tokens=1)
    body = server.complete(prompt="w" * 40, max_tokens=1, prompt_logprobs=1).json()
    assert len(body["choices"][0]["prompt_logprobs"]) == 40
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_best_of_returns_the_most_likely() -> None:
    def play(prompt: bytes, choice: int) -> list[int]:  # the fake's log-probability is −token/100: lower letters are likelier
        return [*([b"zzz", b"aa", b"mmmm", b"b"][choice]), END]

    with running_server(make_engine(play)) as server:
        body = server.complete(prompt="q", best_of=4, n=2, temperature=1, max_tokens=20).json()
        assert [choice["index"] for choice in body["choices"]] == [0, 1]
        assert {choice["text"] for choice in body["choices"]} <= {"zzz", "aa", "mmmm", "b"}
        assert body["choices"][0]["logprobs"] is None
        assert body["usage"]["completion_tokens"] == 4 + 3 + 5 + 2
        server.wait_until_idle()


def test_min_tokens_keeps_stop_strings_from_ending(server: RunningServer) -> None:
    text = text_of("hello")
    body = server.complete(prompt="hello", max_tokens=100, stop=text[2], min_tokens=5).json()
    assert body["usage"]["completion_tokens"] >= 5


def test_stop_reason_names_what_stopped(server: RunningServer) -> None:
    stopped = [
        server.complete(prompt="hello", max_tokens=100, **fields).json()["choices"][0]
        for fields in ({"stop": "ol"}, {"stop_token_ids": [ord("o")]}, {})
    ]
    assert [choice["stop_reason"] for choice in stopped] == ["ol", ord("o"), None]
    assert {choice["finish_reason"] for choice in stopped} == {"stop"}


STOPS = ["D", "DE", "EF", "BCDEFGH", "J", "CDEFGHI", "JZ"]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("includes", [False, True])
def test_stop_strings_across_tokens(stop: str, includes: bool) -> None:
    text = "ABCDEFGHIJ"
    found = text.find(stop)
    expected = text if found < 0 else text[: found + (len(stop) if includes else 0)]
    with running_server(make_engine(text_script({"go": text}))) as server:
        fields = {"prompt": "go", "stop": stop, "max_tokens": 50, "include_stop_str_in_output": includes}
        choice = server.complete(**fields).json()["choices"][0]
        chunks = stream(server, **fields)
        assert choice["text"] == join(chunks)[0]["text"] == expected
        sent = ""
        for chunk in chunks:
            sent += "".join(choice["text"] for choice in chunk["choices"])
            assert text.startswith(sent) and expected.startswith(sent), "a character of the match was sent"


CUT_CHARACTERS = {
    "emoji": "a\U0001f600b".encode(),
    "cut emoji": "a\U0001f600".encode()[:3],
    "lone continuation": b"a\x80b",
    "f0 then space": b"\xf0 x",
    "many invalid": b"\xff" * 200,
    "joined emoji": "\U0001f469\u200d\U0001f680".encode(),
    "flag": "\U0001f1e9\U0001f1ea".encode(),
    "cjk": "水曜日".encode(),
}


@pytest.mark.parametrize("name", CUT_CHARACTERS)
def test_characters_are_whole_in_streams(name: str) -> None:
    data = CUT_CHARACTERS[name]
    with running_server(make_engine(text_script({"go": data}))) as server:
        for max_tokens in {1, 2, 3, len(data), len(data) + 5}:
            expected = data[:max_tokens].decode(errors="replace")
            plain = server.complete(prompt="go", max_tokens=max_tokens).json()["choices"][0]["text"]
            streamed = join(stream(server, prompt="go", max_tokens=max_tokens))[0]["text"]
            assert plain == streamed == expected


def test_request_id_becomes_the_answers_id(server: RunningServer) -> None:
    by_body = server.complete(prompt="a", max_tokens=1, request_id="my-id")
    by_header = server.http.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "other"})
    assert by_body.json()["id"] == "cmpl-my-id"
    assert by_body.headers["x-request-id"] == "my-id"
    assert by_header.json()["id"] == "cmpl-other"
    assert by_header.headers["x-request-id"] == "other"


def test_allowed_token_ids_are_the_only_ones(server: RunningServer) -> None:
    body = server.complete(prompt="hello", max_tokens=4, allowed_token_ids=[ord("q")]).json()
    assert body["choices"][0]["text"] == "qqqq"


def test_chunks_of_a_choice_are_ordered(server: RunningServer) -> None:
    chunks = stream(server, prompt=["hello", "ho"], n=2, max_tokens=100)
    order = [choice["index"] for chunk in chunks for choice in chunk["choices"]]
    assert {index for index, _ in groupby(order)} == {0, 1, 2, 3}
