"""Explanations, the block map, and the stream of events."""

import json
import threading
import time

import httpx

from octavo.engine.explanation import OTHERS_FIRST
from octavo.sampling_params import SamplingParams
from octavo.scheduler.sequence import WaitReason
from server.running import RunningServer, running_server
from server.scripted import make_engine


def explain(server: RunningServer, request_id: str) -> dict:
    response = server.http.get(f"/octavo/requests/{request_id}")
    assert response.status_code == 200, response.text
    return response.json()


def test_explanation_of_a_cold_and_a_warm_request() -> None:
    with running_server() as server:
        prompt = "c" * 40
        server.complete(prompt=prompt, max_tokens=3, request_id="cold")
        server.complete(prompt=prompt, max_tokens=3, request_id="warm")
        server.complete(prompt=prompt[:20] + "d" * 20, max_tokens=3, request_id="fork")
        server.complete(prompt=prompt, max_tokens=3, request_id="salted", cache_salt="other")
        cold, warm, fork, salted = (explain(server, name) for name in ("cold", "warm", "fork", "salted"))
        assert salted["prefix"]["reason"] == "a longer prefix is cached under another salt"
        assert fork["prefix"]["reason"] == "what is cached goes on with another token"
        assert cold["prefix"]["num_hit_tokens"] == 0
        assert cold["prefix"]["reason"] == "nothing cached continues the prefix"
        assert warm["prefix"] == {
            "num_prompt_tokens": 40,
            "num_hit_tokens": 39,
            "num_disk_tokens": 0,
            "reason": "all tokens but the last are cached",
        }
        assert fork["prefix"]["num_hit_tokens"] == 20
        for explanation in (cold, warm, fork):
            assert explanation["queue_ms"] >= 0 and explanation["prefill_ms"] >= 0 and explanation["decode_ms"] >= 0
            (choice,) = explanation["choices"]
            assert (choice["state"], choice["num_blocks"], choice["finish_reason"]) == ("finished", 0, "length")


def test_explanation_says_what_a_request_waited_for() -> None:
    with running_server(make_engine(max_num_seqs=1, step_seconds=0.005)) as server:
        body = {"prompt": "first", "max_tokens": 100, "ignore_eos": True, "stream": True, "request_id": "first"}
        with server.http.stream("POST", "/v1/completions", json=body) as first:
            thread = threading.Thread(target=server.complete, kwargs={"prompt": "second", "max_tokens": 3, "request_id": "second"})
            thread.start()
            while server.engine.num_unfinished_requests < 2:
                time.sleep(0.001)
            time.sleep(0.05)
            waiting, running = explain(server, "second"), explain(server, "first")
            assert {told["request_id"] for told in server.http.get("/octavo/requests").json()} == {"first", "second"}
            first.read()
        thread.join()
        assert server.http.get("/octavo/requests").json() == []
        assert waiting["choices"][0]["state"] == "waiting" and waiting["queue_ms"] is None
        assert running["choices"][0]["state"] == "running" and running["choices"][0]["num_blocks"] > 0
        assert "as many sequences ran as may at once" in explain(server, "second")["waited_for"]


def test_explanation_counts_every_step_that_a_request_waited_for() -> None:
    engine = make_engine(max_num_seqs=1)
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    for name in ("first", "second", "third"):
        engine.add_request(name, params, request_id=name)
    for _ in range(15):
        engine.step()
    assert engine.explain("second").waited_for == {WaitReason.NO_SEAT.value: 9, OTHERS_FIRST: 1}
    assert engine.explain("third").waited_for == {WaitReason.NO_SEAT.value: 4, OTHERS_FIRST: 11}
    engine.abort("third")
    engine.step()
    assert engine.explain("third").waited_for == {WaitReason.NO_SEAT.value: 4, OTHERS_FIRST: 11}


def test_explanation_says_who_took_the_blocks() -> None:
    with running_server(make_engine(num_blocks=12, max_num_seqs=4, max_num_batched_tokens=16)) as server:
        prompts = [letter * 30 for letter in "abcd"]
        server.complete(prompt=prompts, max_tokens=80, ignore_eos=True, request_id="r")
        choices = [explain(server, f"r-{number}")["choices"][0] for number in range(4)]
        preempted = [choice for choice in choices if choice["preempted_by"]]
        assert preempted, "the pool was meant to be too small"
        assert choices[0]["preempted_by"] == [], "the oldest is never preempted"
        known = {choice["sequence_id"] for choice in choices}
        assert all(set(choice["preempted_by"]) <= known for choice in preempted)
        assert any(choice["num_recomputed_tokens"] > 0 for choice in preempted) or all(
            choice["num_recomputed_tokens"] == 0 for choice in choices
        )
        server.wait_until_idle()


def test_unknown_requests_are_not_found(server: RunningServer) -> None:
    response = server.http.get("/octavo/requests/nobody")
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "request_id"


def test_block_map_agrees_with_the_pool() -> None:
    with running_server(make_engine(step_seconds=0.005)) as server:
        empty = server.http.get("/octavo/blocks").json()
        assert empty == {"block_size": 16, "num_blocks": 256, "num_free_blocks": 256, "blocks": []}
        body = {
            "prompt": "m" * 40,
            "n": 2,
            "temperature": 1,
            "max_tokens": 100,
            "ignore_eos": True,
            "stream": True,
            "request_id": "m",
        }
        with server.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            lines = response.iter_lines()
            next(line for line in lines if '"index":1' in line)
            during = server.http.get("/octavo/blocks").json()
            list(lines)
        server.wait_until_idle()
        after = server.http.get("/octavo/blocks").json()
        shared = [block for block in during["blocks"] if block["ref_count"] == 2]
        assert len(shared) == 2, "two whole blocks of the prompt are shared by both choices"
        assert {holder["request_id"] for block in during["blocks"] for holder in block["holders"]} == {"m"}
        assert all(block["state"] == "used" and 0 < block["num_tokens"] <= 16 for block in shared)
        assert {block["state"] for block in after["blocks"]} == {"cached"}
        assert sorted(block["eviction_rank"] for block in after["blocks"]) == list(range(len(after["blocks"])))
        assert after["num_free_blocks"] + len(after["blocks"]) == 256


def test_events_tell_of_requests() -> None:
    with running_server() as server, httpx.Client(base_url=server.url, timeout=10) as other:
        with server.http.stream("GET", "/octavo/events") as response:
            lines = (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line)
            first = next(lines)
            assert first["type"] == "blocks" and first["free"] == 256
            other.post("/v1/completions", json={"prompt": "e", "max_tokens": 2, "request_id": "seen"})
            seen = [event for event in (next(lines) for _ in range(3)) if event["type"] != "blocks"]
        assert seen[0] == {"type": "request_accepted", "request_id": "seen", "prompt_tokens": 1}
        assert seen[1:] in (
            [],
            [{"type": "request_finished", "request_id": "seen", "completion_tokens": 2, "reasons": ["length"]}],
        )
