"""Health, readiness, metrics and the engine's thread."""

import asyncio
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.sampling_params import SamplingParams
from octavo.server.errors import ApiError
from server.running import RunningServer, running_server
from server.scripted import make_engine


def metrics_of(server: RunningServer) -> dict[str, float]:
    """Returns the samples of /metrics by name, and by name and last label where there are several."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name not in ("model_name", "le")]
            samples[":".join([sample.name.removeprefix("octavo:"), *labels])] = sample.value
    return samples


def test_metrics_agree_with_usage() -> None:
    with running_server() as server:
        usages = [
            server.complete(**{"prompt": "abc" * 10, "max_tokens": 100, **fields}).json()["usage"]
            for fields in ({}, {"n": 3, "temperature": 1}, {"max_tokens": 2}, {"stop": "c"})
        ]
        metrics = metrics_of(server)
        assert metrics["prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
        assert metrics["generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages)
        assert metrics["prefix_cache_hits_total"] == sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        assert metrics["request_success_total:stop"] == 5
        assert metrics["request_success_total:length"] == 1
        assert metrics["time_to_first_token_seconds_count"] == metrics["e2e_request_latency_seconds_count"] == 4
        assert metrics["inter_token_latency_seconds_count"] == metrics["generation_tokens_total"] - 6
        assert metrics["num_requests_running"] == metrics["num_requests_waiting"] == metrics["kv_blocks:used"] == 0
        assert metrics["kv_blocks:free"] + metrics["kv_blocks:cached"] == 256


def test_counters_never_fall_while_requests_come_and_go() -> None:
    with running_server(make_engine(num_blocks=12, max_num_seqs=4)) as server:
        before: dict[str, float] = {}
        for number in range(6):
            server.complete(prompt=[f"{number} " + "x" * 40] * 3, n=2, temperature=1, max_tokens=60)
            now = metrics_of(server)
            for name, value in before.items():
                assert not name.partition(":")[0].endswith(("_total", "_count", "_bucket")) or now[name] >= value, name
            before = now
        server.wait_until_idle()


def test_preempted_sequences_are_counted() -> None:
    engine = make_engine(num_blocks=12, max_num_seqs=4, max_num_batched_tokens=16)
    for letter in "abcd":
        engine.add_request(letter * 30, SamplingParams(max_tokens=80, ignore_eos=True))
    seen = set()
    while engine.has_unfinished_requests:
        engine.step()
        stats = engine.stats()
        seen.add(stats.num_preempted)
        assert stats.num_preempted <= min(stats.num_waiting, stats.num_preemptions)
    assert len(seen) > 1 and engine.stats().num_preempted == 0


def test_dead_engine_fails_everybody_and_shows() -> None:
    engine = make_engine(step_seconds=0.005)
    with running_server(engine) as server:
        assert server.http.get("/health").status_code == 200
        engine._runner.fault = MemoryError("injected")
        response = server.complete(prompt="hello")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_stopped"
        for path in ("/health", "/ready"):
            assert server.http.get(path).status_code == 503
        assert server.complete(prompt="hello", stream=True).status_code == 503
        assert server.http.get("/metrics").status_code == 200


def test_dying_engine_ends_a_stream_with_an_error() -> None:
    engine = make_engine(step_seconds=0.005)
    with running_server(engine) as server:
        body = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            engine._runner.fault = RuntimeError("injected")
            rest = list(lines)
        assert "engine_stopped" in rest[-4]
        assert rest[-2] == "data: [DONE]"


def test_an_engine_without_progress_is_alive_but_not_ready(monkeypatch) -> None:
    monkeypatch.setattr("octavo.server.engine_thread.READY_SECONDS", 0.5)
    with running_server(make_engine(step_seconds=1.5)) as server:
        assert server.http.get("/ready").status_code == 200
        with server.http.stream("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 1, "stream": True}) as response:
            deadline = time.monotonic() + 5
            while (refused := server.http.get("/ready")).status_code == 200:
                assert time.monotonic() < deadline, "it stays ready"
                time.sleep(0.05)
            assert refused.json()["error"]["code"] == "stalled"
            assert server.http.get("/health").status_code == 200
            response.read()
        assert server.http.get("/ready").status_code == 200


def test_an_unforeseen_fault_of_one_request_harms_only_it(monkeypatch) -> None:
    with running_server() as server:
        original = server.engine.add_request

        def add(prompt, params, **fields):
            if fields["request_id"] == "bad":
                raise ZeroDivisionError("injected")
            return original(prompt, params, **fields)

        monkeypatch.setattr(server.engine, "add_request", add)
        response = server.complete(prompt="a", request_id="bad")
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert server.complete(prompt="a").status_code == 200


def test_full_queue_is_answered_429() -> None:
    with running_server(make_engine(step_seconds=0.01), max_requests=3) as server:
        body = {"prompt": ["a", "b"], "max_tokens": 100, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as busy:
            refused = server.complete(prompt=["c", "d"])
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "queue_full"
            assert int(refused.headers["retry-after"]) >= 1
            assert server.complete(prompt="c", max_tokens=1).status_code == 200
            busy.read()
        never = server.complete(prompt=["a"] * 4)
        assert never.status_code == 400
        server.wait_until_idle()


def test_all_prompts_are_accepted_or_none(server: RunningServer) -> None:
    response = server.complete(prompt=["fine", "x" * 600], max_tokens=5)
    assert response.status_code == 400
    assert server.engine.num_unfinished_requests == 0


def test_http_loop_never_waits_for_a_step() -> None:
    body = {"prompt": "a", "max_tokens": 1, "stream": True}
    with (
        running_server(make_engine(step_seconds=3.0)) as server,
        server.http.stream("POST", "/v1/completions", json=body) as response,
    ):
        started = time.monotonic()
        for _ in range(5):
            assert server.http.get("/health").status_code == 200
        assert time.monotonic() - started < 2.5, "a request waited for the step"
        response.read()


def test_calls_after_the_end_are_refused() -> None:
    with running_server() as server:
        thread = server.app.state.context.engine
    with pytest.raises(ApiError):
        asyncio.run(thread.call(lambda engine: engine.stats()))


def test_impossible_requests_do_not_block_others() -> None:
    with running_server(make_engine(num_blocks=8, max_model_len=512)) as server:
        refused = server.complete(prompt="x" * 200)
        assert refused.status_code == 400
        assert "8" in refused.json()["error"]["message"]
        assert server.complete(prompt="small").status_code == 200
        server.wait_until_idle()


def test_cors_is_off_unless_asked_for() -> None:
    preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    with running_server() as server:
        assert "access-control-allow-origin" not in server.http.options("/v1/completions", headers=preflight).headers
    with running_server(allowed_origins=("https://app.example",)) as server:
        answer = server.http.options("/v1/completions", headers=preflight)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        other = server.http.options("/v1/completions", headers={**preflight, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
