"""A planted fault that leaves work waiting: the server says so, dumps what it holds, and fails the request in the way."""

import logging
import time

import pytest

from octavo.engine.stall_watch import StallWatch
from octavo.errors import StallError
from octavo.llm import LLM
from octavo.sampling_params import SamplingParams
from octavo.scheduler.batch import ScheduledBatch
from server.running import running_server
from server.scripted import make_engine


def plant_fault(monkeypatch: pytest.MonkeyPatch, engine, request_id: str) -> None:
    """Makes the scheduler hand out nothing while a request is there."""
    schedule = engine._scheduler.schedule
    monkeypatch.setattr(engine._scheduler, "schedule", lambda: ScheduledBatch() if engine.is_in_flight(request_id) else schedule())


def test_request_that_nothing_runs_because_of_is_failed_with_the_reason(monkeypatch, caplog) -> None:
    engine = make_engine()
    plant_fault(monkeypatch, engine, "stuck")
    caplog.set_level(logging.CRITICAL, logger="octavo.engine")
    with running_server(engine, stall_timeout=1) as server:
        assert server.http.get("/ready").status_code == 200
        response = server.complete(prompt="a" * 40, request_id="stuck")
        assert response.status_code == 500
        error = response.json()["error"]
        assert error["code"] == "stalled" and "request stuck was failed" in error["message"]
        refused = server.http.get("/ready")
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "stalled"
        assert server.http.get("/health").status_code == 200
        assert server.complete(prompt="fine").status_code == 200
        assert server.http.get("/ready").status_code == 200, "it runs again"
        server.wait_until_idle()
    (record,) = [record for record in caplog.records if record.name == "octavo.engine"]
    text = record.getMessage()
    assert "failing stuck" in text and "waiting: 1 sequences" in text and "of stuck: 0 of 40 tokens computed" in text
    assert "pool: 256 blocks, 256 free" in text


def test_dump_names_the_holders_of_every_block() -> None:
    engine = make_engine()
    engine.add_request([1] * 40, SamplingParams(max_tokens=9), request_id="first")
    engine.step()
    engine.add_request([2] * 5, SamplingParams(max_tokens=9), request_id="second")
    dump = engine.dump()
    assert dump.offender == "first"
    assert "running: 1 sequences" in dump.text and "waiting: 1 sequences" in dump.text
    assert [line.count("held by [first/1 group 0]") for line in dump.text.splitlines() if line.startswith("  block")] == [1, 1, 1]


def test_others_get_on_after_the_offender_is_gone(monkeypatch) -> None:
    engine = make_engine(step_seconds=0.001)
    plant_fault(monkeypatch, engine, "stuck")
    with running_server(engine, stall_timeout=1) as server:
        started = time.monotonic()
        body = {"prompt": "b", "max_tokens": 5, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json={**body, "request_id": "stuck"}) as stuck:
            response = server.complete(prompt="other", max_tokens=5)
            rest = list(stuck.iter_lines())
        assert response.status_code == 200
        assert any("stalled" in line for line in rest)
        assert 1.0 <= time.monotonic() - started < 8.0
        server.wait_until_idle()


def test_llm_raises_instead_of_waiting_for_ever(monkeypatch) -> None:
    monkeypatch.setattr("octavo.llm.load_engine", lambda config: make_engine())
    llm = LLM()
    llm._stalls = StallWatch(llm.engine, clock=iter(range(0, 10_000, 7)).__next__)
    plant_fault(monkeypatch, llm.engine, "request-0")
    with pytest.raises(StallError, match="request-0 was failed"):
        llm.generate([[1, 2, 3]])
    assert not llm.engine.has_unfinished_requests
    assert len(llm.generate([[1, 2, 3]])) == 1
