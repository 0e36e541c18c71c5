"""What every benchmark writes beside its figures: the commit, the machine, the versions.

Owns: the shape of a results file. Must not know: what was measured.
"""

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

from octavo import __version__
from octavo.kernels.processor import processor_name


def describe_run() -> dict[str, Any]:
    """Returns what a reader must know to compare figures."""
    return {"commit": commit(), "version": __version__, "python": platform.python_version(), "processor": processor_name()}


def save(report: dict[str, Any], path: Path | None) -> None:
    """Prints a report as one line of JSON and writes it to ``path``, where one is given."""
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report))


def commit() -> str:
    """Returns the checkout's commit, or "unknown" outside one."""
    root = Path(__file__).parent
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"
