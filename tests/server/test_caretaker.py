"""`octavo.server.caretaker`: idle memory goes back after the time that was set, and what was done is told."""

import time

import pytest

from engine.tiny_engine import TinyModels, answer
from octavo.cli.top import read_figures
from octavo.sampling_params import SamplingParams
from octavo.server.caretaker import Caretaker
from octavo.server.config import ServerConfig
from server.running import TIMEOUT_SECONDS, running_server

KEPT_BLOCKS = 4
PARAMS = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
PROMPTS = [[1 + index] * 60 for index in range(4)]


@pytest.fixture
def engine():
    """An engine with more cached blocks than are kept."""
    engine = TinyModels().engine()
    answer(engine, PROMPTS, PARAMS)
    assert engine.stats().memory.num_committed_blocks > KEPT_BLOCKS
    return engine


@pytest.fixture
def clock(engine, monkeypatch):
    """The caretaker's time, a list with one number."""
    now = [100.0]
    monkeypatch.setattr("octavo.server.caretaker.time.monotonic", lambda: now[0])
    monkeypatch.setattr("octavo.server.caretaker.IDLE_KEPT_BYTES", KEPT_BLOCKS * engine.stats().kv_block_bytes)
    return now


def test_idle_memory_goes_back_when_its_time_has_come(engine, clock) -> None:
    caretaker = Caretaker(engine, ServerConfig(idle_release=30))
    num_before = engine.stats().memory.num_committed_blocks
    assert caretaker.tend() == []
    clock[0] += 29
    assert caretaker.tend() == [] and engine.stats().memory.num_committed_blocks == num_before
    clock[0] += 1
    (event,) = caretaker.tend()
    assert (event["type"], event["action"], event["num_blocks"]) == ("memory", "release_idle", num_before - KEPT_BLOCKS)
    assert engine.stats().memory.num_committed_blocks == KEPT_BLOCKS
    clock[0] += 30
    assert caretaker.tend() == [], "there is nothing more to give back"


def test_work_starts_the_time_anew(engine, clock) -> None:
    caretaker = Caretaker(engine, ServerConfig(idle_release=30))
    caretaker.tend()
    clock[0] += 29
    engine.add_request(PROMPTS[0], PARAMS)
    assert caretaker.tend() == []
    while engine.has_unfinished_requests:
        engine.step()
    clock[0] += 29
    assert caretaker.tend() == []
    clock[0] += 29
    assert caretaker.tend() == []
    clock[0] += 1
    assert len(caretaker.tend()) == 1


def test_without_a_time_nothing_goes_back(engine, clock) -> None:
    caretaker = Caretaker(engine, ServerConfig())
    for _ in range(3):
        assert caretaker.tend() == []
        clock[0] += 1e6


def test_the_server_counts_it(engine, monkeypatch) -> None:
    monkeypatch.setattr("octavo.server.caretaker.IDLE_KEPT_BYTES", 0)
    monkeypatch.setattr("octavo.server.engine_thread.LOOK_SECONDS", 0.05)
    with running_server(engine, idle_release=1) as server:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (figures := read_figures(server.url, "none")).get("memory_actions_total:release_idle") != 1:
            assert time.monotonic() < deadline, "nothing went back"
        assert figures["memory_bytes:kv_committed"] == 0
