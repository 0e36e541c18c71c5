"""DELETE /octavo/requests/{id}: in every state a request's blocks are free when the answer comes, and its client is told."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from octavo.engine.explanation import ChoiceExplanation
from server.running import RunningServer, running_server
from server.scripted import make_engine

STEP_SECONDS = 0.01
LONG: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True, "request_id": "r"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Four sequences at once, four tokens a step, blocks for 192 tokens."""
    engine = make_engine(max_num_seqs=4, num_blocks=12, max_num_batched_tokens=4, step_seconds=STEP_SECONDS)
    with running_server(engine) as server:
        yield server


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the state never came"
        time.sleep(0.001)


def choices_of(server: RunningServer, request_id: str = "r") -> list[ChoiceExplanation]:
    """Returns the choices of a request that is in the engine; none for one that left."""
    told = server.engine.explain(request_id)
    return told.choices if told is not None and server.engine.is_in_flight(request_id) else []


def cancel(server: RunningServer, request_id: str = "r") -> dict:
    """Cancels a request and checks that nothing of it is left."""
    response = server.http.delete(f"/octavo/requests/{request_id}")
    assert response.status_code == 200, response.text
    told = response.json()
    assert all((choice["state"], choice["num_blocks"]) == ("finished", 0) for choice in told["choices"])
    holders = {holder["request_id"] for block in server.http.get("/octavo/blocks").json()["blocks"] for holder in block["holders"]}
    assert told["request_id"] not in holders
    return told


def check_refusal(answer: "Future[httpx.Response]") -> None:
    response = answer.result()
    assert response.status_code == 400 and response.json()["error"]["code"] == "cancelled"


def test_waiting(server: RunningServer, clients: ThreadPoolExecutor) -> None:
    busy = clients.submit(server.complete, prompt="b", n=4, temperature=1, **LONG | {"request_id": "busy", "max_tokens": 20})
    wait_until(lambda: len(choices_of(server, "busy")) == 4)
    answer = clients.submit(server.complete, prompt="x" * 40, **LONG | {"max_tokens": 100})
    wait_until(lambda: [choice.state for choice in choices_of(server)] == ["waiting"])
    assert cancel(server)["queue_ms"] is None
    check_refusal(answer)
    assert {choice["finish_reason"] for choice in busy.result().json()["choices"]} == {"length"}
    server.wait_until_idle()


def test_in_the_middle_of_the_prompt(server: RunningServer, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(server.complete, prompt="y" * 160, **LONG | {"max_tokens": 5})
    wait_until(lambda: any(0 < choice.num_computed_tokens < 100 for choice in choices_of(server)))
    cancel(server)
    check_refusal(answer)
    server.wait_until_idle()


def test_preempted(server: RunningServer, clients: ThreadPoolExecutor) -> None:
    oldest = clients.submit(server.complete, prompt="o" * 30, **LONG | {"max_tokens": 150, "request_id": "oldest"})
    wait_until(lambda: bool(choices_of(server, "oldest")))
    answer = clients.submit(server.complete, prompt="p" * 30, **LONG | {"max_tokens": 150})
    wait_until(lambda: any(choice.state == "waiting" and choice.preempted_by for choice in choices_of(server)))
    cancel(server)
    body = answer.result().json()
    assert body["choices"][0]["finish_reason"] == "abort" and 0 < body["usage"]["completion_tokens"] < 150
    assert oldest.result().json()["choices"][0]["finish_reason"] == "length"
    server.wait_until_idle()


@pytest.mark.parametrize("fields", [{"prompt": "n", "n": 4, "temperature": 1}, {"prompt": ["a", "b", "c"]}], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_all_choices_of_all_prompts_end(server: RunningServer, clients: ThreadPoolExecutor, fields: dict, stream: bool) -> None:
    answer = clients.submit(server.complete, stream=stream, **LONG | {"max_tokens": 100} | fields)
    last = "r" if "n" in fields else "r-2"
    num_choices = fields.get("n", 1)
    wait_until(lambda: [choice.num_tokens > 3 for choice in choices_of(server, last)] == [True] * num_choices)
    cancel(server)
    assert server.engine.num_unfinished_requests == 0
    text = answer.result().text
    assert text.count('"finish_reason":"abort"') == max(num_choices, 3 if isinstance(fields["prompt"], list) else 1)
    assert text.endswith("data: [DONE]\n\n") == stream
    server.wait_until_idle()


def test_last_token(server: RunningServer, clients: ThreadPoolExecutor) -> None:
    for _ in range(20):
        answer = clients.submit(server.complete, prompt="l", **LONG | {"max_tokens": 2})
        wait_until(lambda: server.engine.num_unfinished_requests == 1)
        time.sleep(1.5 * STEP_SECONDS)  # in the middle of the step that computes the last token
        response = server.http.delete("/octavo/requests/r")
        choice = answer.result().json()["choices"][0]
        assert (response.status_code, choice["finish_reason"]) in ((404, "length"), (200, "abort"))
        server.wait_until_idle()


def test_embedding(server: RunningServer, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(server.http.post, "/v1/embeddings", json={"input": ["z" * 150] * 5, "request_id": "r"})
    wait_until(lambda: bool(choices_of(server, "r-0")))
    cancel(server)
    check_refusal(answer)
    server.wait_until_idle()


def test_who_may_cancel_what(server: RunningServer, tmp_path) -> None:
    missing = server.http.delete("/octavo/requests/nobody")
    assert missing.status_code == 404 and missing.json()["error"]["param"] == "request_id"
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.alice]\nkey = "alice-key"\n[keys.bob]\nkey = "bob-key"\n')
    with running_server(make_engine(step_seconds=STEP_SECONDS), api_keys=str(keys)) as keyed, ThreadPoolExecutor(1) as clients:
        alice, bob = ({"Authorization": f"Bearer {name}-key"} for name in ("alice", "bob"))
        answer = clients.submit(keyed.http.post, "/v1/completions", json={"prompt": "a", **LONG}, headers=alice)
        wait_until(lambda: keyed.engine.num_unfinished_requests == 1)
        assert keyed.http.delete("/octavo/requests/r", headers=bob).status_code == 404
        assert keyed.http.delete("/octavo/requests/r").status_code == 401
        assert keyed.http.delete("/octavo/requests/r", headers=alice).status_code == 200
        assert answer.result().status_code in (200, 400)
        keyed.wait_until_idle()
