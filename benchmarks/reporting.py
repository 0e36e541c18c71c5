"""What every benchmark writes beside its figures: the commit, the machine, the versions.

Owns: the shape of a results file. Must not know: what was measured.
"""

import argparse
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

from octavo import __version__
from octavo.kernels.processor import processor_name


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --output, which `save` takes as its path."""
    parser.add_argument("--output", type=Path, default=None, help="file for the figures")


def parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns what a benchmark was asked to measure, for its report."""
    return {name: value for name, value in vars(arguments).items() if name != "output"}


def save(benchmark: str, figures: dict[str, Any], path: Path | None = None) -> None:
    """Prints a benchmark's figures, behind what a reader must know to compare them, as one line of JSON.

    Args:
        path: file to write the same to.
    """
    report = {
        "benchmark": benchmark,
        "commit": _commit(),
        "version": __version__,
        "python": platform.python_version(),
        "processor": processor_name(),
        **figures,
    }
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report))


def saved_figures(path: Path | None) -> dict[str, Any]:
    """Returns the figures by name that a results file has, for a run that takes some of them again; none where there is no file."""
    if path is None or not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8")).get("figures", {})


def _commit() -> str:
    """Returns the checkout's commit, or "unknown" outside one."""
    root = Path(__file__).parent
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"
