"""Times starting: from the process's start to the first token, and to the version and the help text.

Usage: python benchmarks/start.py [--model NAME] [--repeats N] [--output FILE]

The file cache is warm and Python's byte code is there, as in an installed package: each command runs once before it is timed. Every
run must print the same first piece of text. Medians; the least time is what the machine does when nothing disturbs it.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from octavo.config import DEFAULT_MODEL
from reporting import save

PROMPT = "The capital of France is"
TARGET_S = 0.8  # to the first token, from the file's own weights


def start_s(arguments: list[str], environment: dict[str, str]) -> tuple[float, bytes]:
    """Returns the seconds until a command's first output, and that output."""
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "octavo", *arguments], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 64)
        elapsed_s = time.perf_counter() - started
        process.stdout.read()
    if process.returncode != 0:
        sys.exit(f"octavo {' '.join(arguments)} failed")
    return elapsed_s, first


def measure(arguments: list[str], environment: dict[str, str], repeats: int) -> dict[str, float]:
    """Returns the median and the least time of a command."""
    _, expected = start_s(arguments, environment)
    times = []
    for _ in range(repeats):
        elapsed_s, first = start_s(arguments, environment)
        if first != expected:
            sys.exit(f"octavo {' '.join(arguments)} printed {first!r} after {expected!r}")
        times.append(elapsed_s)
    return {"median_s": statistics.median(times), "least_s": min(times)}


def main() -> None:
    """Measures, prints a table, saves the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, default=None, help="file for the figures")
    arguments = parser.parse_args()
    generate = ["generate", PROMPT, "--model", arguments.model, "--max-tokens", "1", "--temperature", "0"]
    commands = {
        "first token, weights as in the file": generate,
        "first token, bf16": [*generate, "--dtype", "bf16"],
        "octavo --version": ["--version"],
        "octavo --help": ["--help"],
    }
    figures = {}
    with tempfile.TemporaryDirectory() as byte_code:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = byte_code
        for name, command in commands.items():
            figures[name] = measure(command, environment, arguments.repeats)
            print(f"{name:38}median {figures[name]['median_s']:6.3f} s   least {figures[name]['least_s']:6.3f} s")
    save("start", {"target_s": TARGET_S, "repeats": arguments.repeats, "figures": figures}, arguments.output)


if __name__ == "__main__":
    main()
