"""The package and its command start fast, and import only what they need."""

import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import octavo

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
LIMIT_S = 0.3
TRIES = 5  # the best of several runs: whatever else the machine does must not fail this


def best_cpu_s(*arguments: str) -> float:
    """Returns the least processor time that running Python with ``arguments`` took, start of the interpreter included."""
    return min(cpu_s(arguments) for _ in range(TRIES))


def cpu_s(arguments: tuple[str, ...]) -> float:
    before = os.times()
    started = time.monotonic()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = os.times()
    used = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    return min(used, time.monotonic() - started)


@pytest.mark.parametrize("arguments", [("-c", "import octavo"), ("-m", "octavo", "--version")], ids=["import", "version"])
def test_starts_within_the_limit(arguments: tuple[str, ...]) -> None:
    assert best_cpu_s(*arguments) <= LIMIT_S


def test_version_is_the_one_of_the_distribution() -> None:
    assert octavo.__version__ == tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["version"]


def test_public_names_resolve() -> None:
    assert [name for name in octavo.__all__ if not hasattr(octavo, name)] == []


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_works_without_libraries_that_only_tests_need(library: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; import octavo; octavo.LLM; octavo.SamplingParams"
    subprocess.run([sys.executable, "-c", code], check=True)
