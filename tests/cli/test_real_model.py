"""The commands as a user runs them, with the default model; skipped where its file is not in the cache."""

import re
import subprocess
import sys

import pytest

from octavo.config import DEFAULT_MODEL
from octavo.models.cache_directory import cache_directory
from octavo.models.packaged_models import PACKAGED_MODELS

MODEL_PATH = cache_directory() / "models" / PACKAGED_MODELS[DEFAULT_MODEL].file_name

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL_PATH.exists(), reason=f"{DEFAULT_MODEL} is not in the cache: octavo pull {DEFAULT_MODEL}"),
]


def octavo(*arguments: str, entered: str = "") -> str:
    """Runs a command and returns its standard output; it must succeed and complain about nothing."""
    command = [sys.executable, "-m", "octavo", *arguments]
    result = subprocess.run(command, input=entered, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_generate_continues_a_text() -> None:
    assert octavo("generate", "The capital of France is", "--max-tokens", "2", "--temperature", "0").startswith(" Paris")


def test_generate_is_repeatable_with_a_seed() -> None:
    arguments = ("--max-tokens", "12", "--temperature", "1", "--seed", "7")
    piped = octavo("generate", *arguments, entered="Once upon a time\n")
    assert piped == octavo("generate", "Once upon a time", *arguments)
    assert piped != octavo("generate", "Once upon a time", *arguments[:-1], "8")


def test_demo_holds_all_conversations_and_is_exact() -> None:
    shown = octavo("demo")
    paged = int(re.search(r"conversations held at once, paged +(\d+)", shown)[1])
    contiguous = int(re.search(r"tokens each would hold +(\d+)", shown)[1])
    assert paged == 32
    assert contiguous <= 4
    assert int(re.search(r"saved by sharing at peak +([\d,]+)", shown)[1].replace(",", "")) > 0
    assert shown.splitlines()[-1] == "exact: yes"
