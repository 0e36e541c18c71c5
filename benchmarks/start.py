"""Times starting: from the process's start to the first token, to a server that answers, and to the version and the help text.

Usage: python benchmarks/start.py [--model NAME] [--repeats N] [--output FILE]

The file cache is warm and Python's byte code is there, as in an installed package: each command runs once before it is timed. Every
run must print the same first piece of text. A server is killed as soon as it answers, so that each but the first is one that was
started again after a crash; the last one is left idle for some seconds. Medians; the least time is what the machine does when
nothing disturbs it.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from octavo.config import DEFAULT_MODEL
from reporting import add_output_argument, save

PROMPT = "The capital of France is"
TARGET_S = 0.8  # to the first token, from the file's own weights
SERVER_TARGET_S = 2.0
POLL_S = 0.01
IDLE_S = 5.0


def start_s(arguments: list[str], environment: dict[str, str]) -> tuple[float, bytes]:
    """Returns the seconds until a command's first output, and that output."""
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "octavo", *arguments], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 64).rstrip(b"\n")  # the end of the line may come with it or later
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
    return summary(times)


def summary(times: list[float]) -> dict[str, float]:
    """Returns the median and the least of some times."""
    return {"median_s": statistics.median(times), "least_s": min(times)}


def measure_server(model: str, environment: dict[str, str], repeats: int) -> dict[str, float]:
    """Returns the times until a server's ``/ready`` answers, each killed then, and the share of a core that an idle one uses."""
    port = free_port()
    times = []
    for _ in range(1 + repeats):
        with ready_server(model, port, environment) as (_, elapsed_s):
            times.append(elapsed_s)
    with ready_server(model, port, environment) as (process, _):
        before_s = processor_s(process)
        time.sleep(IDLE_S)
        idle_core_share = (processor_s(process) - before_s) / IDLE_S
    return {**summary(times[1:]), "idle_core_share": idle_core_share}


def processor_s(process: subprocess.Popen) -> float:
    """Returns the processor time that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Returns a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def ready_server(model: str, port: int, environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen, float]]:
    """Starts a server on ``port``, waits until it answers, and kills it after the body; yields it and the seconds it took."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        while not answers(port):
            if process.poll() is not None:
                sys.exit("octavo serve ended")
            time.sleep(POLL_S)
        try:
            yield process, time.perf_counter() - started
        finally:
            process.kill()


def answers(port: int) -> bool:
    """Returns whether a server on ``port`` says that it is ready."""
    connection = HTTPConnection("127.0.0.1", port, timeout=TARGET_S)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def print_row(name: str, times: dict[str, float]) -> None:
    """Prints a command's figures for people."""
    print(f"{name:38}median {times['median_s']:6.3f} s   least {times['least_s']:6.3f} s", flush=True)


def main() -> None:
    """Measures, prints a table, saves the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repeats", type=int, default=9)
    add_output_argument(parser)
    arguments = parser.parse_args()
    generate = ["generate", PROMPT, "--model", arguments.model, "--max-tokens", "1", "--temperature", "0"]
    commands = {
        "first token, weights as in the file": generate,
        "first token, bf16": [*generate, "--weights", "bf16"],
        "octavo --version": ["--version"],
        "octavo --help": ["--help"],
    }
    figures = {}
    with tempfile.TemporaryDirectory() as byte_code:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = byte_code
        for name, command in commands.items():
            figures[name] = measure(command, environment, arguments.repeats)
            print_row(name, figures[name])
        figures["server ready"] = measure_server(arguments.model, environment, arguments.repeats)
        print_row("server ready", figures["server ready"])
        print(f"{'idle server':38}{figures['server ready']['idle_core_share']:.2%} of a core")
    targets = {"target_s": TARGET_S, "server_target_s": SERVER_TARGET_S}
    save("start", {**targets, "repeats": arguments.repeats, "figures": figures}, arguments.output)


if __name__ == "__main__":
    main()
