"""``/v1/embeddings``, with the official client and by hand."""

import asyncio
import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest

from engine.tiny_engine import TinyModels, run
from server.running import RunningServer, running_server
from server.scripted import VOCAB_SIZE, make_engine

INPUTS: list[tuple[Any, int]] = [("hello", 5), (["hello", "ho"], 7), ([104, 105], 2), ([[104, 105], [106]], 3)]


def embed(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.http.post("/v1/embeddings", json=fields)


def vectors(body: dict) -> list[list[float]]:
    assert [entry["index"] for entry in body["data"]] == list(range(len(body["data"])))
    return [entry["embedding"] for entry in body["data"]]


@pytest.mark.parametrize(("given", "num_tokens"), INPUTS, ids=json.dumps)
def test_every_form_of_input_through_the_official_client(server: RunningServer, given: Any, num_tokens: int) -> None:
    plain = embed(server, input=given).json()
    client = server.openai()
    for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model="scripted", input=given, **encoding)
        received = [entry.embedding for entry in answer.data]
        if encoding.get("encoding_format") == "base64":
            received = [np.frombuffer(base64.b64decode(text), "<f4").tolist() for text in received]
        assert received == vectors(plain)
        assert answer.usage.model_dump() == plain["usage"]
    assert (
        plain["usage"]["prompt_tokens"]
        == plain["usage"]["total_tokens"]
        == (5 if given == "hello" else plain["usage"]["total_tokens"])
    )
    assert plain["object"] == "list" and plain["model"] == "scripted"


def test_async_client(server: RunningServer) -> None:
    async def ask() -> list[float]:
        async with server.async_openai() as client:
            return (await client.embeddings.create(model="scripted", input="hello")).data[0].embedding

    assert asyncio.run(ask()) == vectors(embed(server, input="hello").json())[0]


def test_pooling_and_dimensions_are_what_they_say(server: RunningServer) -> None:
    def expected(state: np.ndarray) -> np.ndarray:
        return (state / np.linalg.norm(state)).astype(np.float32)

    tokens = list(b"hello")
    states = np.array([(token, position, 1.0) for position, token in enumerate(tokens)])
    mean, last, short = (
        vectors(embed(server, input="hello", **fields).json())[0]
        for fields in ({}, {"pooling": "last"}, {"pooling": "mean", "dimensions": 2})
    )
    assert mean == expected(states.mean(axis=0)).tolist()
    assert last == expected(states[-1]).tolist()
    assert np.allclose(short, expected(states.mean(axis=0)[:2]), atol=1e-6)
    assert vectors(embed(server, input="hello", dimensions=3).json())[0] == pytest.approx(mean, abs=1e-6)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": [[]]}, "input"),
    ({"input": ["a", ""]}, "input"),
    ({"input": ["a", 1]}, "input[1]"),
    ({"input": [VOCAB_SIZE]}, "input"),
    ({"input": [-1]}, "input"),
    ({"input": None}, "input"),
    ({"input": {"a": 1}}, "input"),
    ({"input": "x" * 513}, "input"),
    ({"input": "x" * 10**6}, "input"),
    ({"input": ["a"] * 257}, "input"),
    ({"dimensions": 4}, "dimensions"),
    ({"dimensions": 0}, "dimensions"),
    ({"dimensions": True}, "dimensions"),
    ({"encoding_format": "int8"}, "encoding_format"),
    ({"pooling": "max"}, "pooling"),
    ({"temperature": 1}, "temperature"),
    ({"model": "other"}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=str)
def test_wrong_requests_name_their_field(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = embed(server, **{"input": "hello", **fields})
    assert response.status_code == (404 if param == "model" else 400)
    assert response.json()["error"]["param"] == param
    assert server.engine.num_unfinished_requests == 0


def test_longest_input_is_embedded(server: RunningServer) -> None:
    assert embed(server, input="x" * 512).json()["usage"]["prompt_tokens"] == 512


def test_time_limit_and_leaving_clients_leave_nothing() -> None:
    with running_server(make_engine(step_seconds=0.1), max_request_seconds=1) as server:
        late = embed(server, input=["x" * 500] * 20)
        assert late.status_code == 503 and late.json()["error"]["code"] == "timeout"
        with pytest.raises(httpx.TimeoutException):
            server.http.post("/v1/embeddings", json={"input": "x" * 500}, timeout=0.3)
        server.wait_until_idle()


def test_served_vectors_equal_the_engines_to_the_bit() -> None:
    models = TinyModels()
    prompts = [[65 + number] * (5 + 9 * number) for number in range(6)]
    engine = models.engine()
    ids = [engine.add_embedding_request(prompt) for prompt in prompts]
    run(engine)
    expected = [engine.take(request_id).embedding.tolist() for request_id in ids]
    with running_server(models.engine(kv_memory="20 blocks", max_num_batched_tokens=32)) as server:
        assert vectors(embed(server, input=prompts).json()) == expected
        server.wait_until_idle()
