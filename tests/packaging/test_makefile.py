"""The Makefile: its help is complete, and a path with a space in it does not confuse it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
COMMANDS = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()


def make(folder: Path, *arguments: str) -> str:
    """Runs make in a folder, as from a shell even when these tests run under make, and returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


def test_help_explains_every_command() -> None:
    explained = re.findall(r"^make ([\w-]+) +\S", make(ROOT, "help"), re.MULTILINE)
    assert sorted(explained) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_path_with_spaces_is_no_problem(tmp_path: Path, command: str) -> None:
    checkout = tmp_path / "with some spaces"
    checkout.mkdir()
    for name in ("Makefile", "pyproject.toml", "CMakeLists.txt"):
        shutil.copy2(ROOT / name, checkout)
    for name in ("src", "csrc", "requirements"):
        (checkout / name).mkdir()
        (checkout / name / "lock.txt").touch()
    shown = make(checkout, "--dry-run", command)
    assert "with some spaces" not in shown  # every path is relative
