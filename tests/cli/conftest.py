"""Fixtures for the command line's tests."""

from collections.abc import Callable
from typing import Any

import pytest

import octavo
from cli.fake_llm import FakeLLM


@pytest.fixture
def fake_llm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeLLM]:
    """Returns a function that puts a `FakeLLM` with the given pieces in the place of `octavo.LLM`."""

    def install(*pieces: Any) -> FakeLLM:
        fake = FakeLLM(list(pieces))
        monkeypatch.setitem(vars(octavo), "LLM", fake)  # without importing the real one
        return fake

    return install
