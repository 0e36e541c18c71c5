"""What the system calls this processor.

Owns: the reading of /proc/cpuinfo. Must not know: what the name is for.
"""

import platform
from pathlib import Path


def processor_name() -> str:
    """Returns the processor's name as the system reports it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part")))
    return next(names, platform.machine())
