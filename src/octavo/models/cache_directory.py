"""Where the package keeps files between runs, and how it writes them.

Owns: the location and the atomic write. Must not know: what is kept there.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def cache_directory() -> Path:
    """Returns ``$OCTAVO_CACHE``, or ``octavo`` in the user's cache directory; it may not exist yet."""
    if chosen := os.environ.get("OCTAVO_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "octavo"


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a file as `replacement` does, in a directory that may not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacement(path) as file:
        write(file)


@contextmanager
def replacement(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that takes the place of ``path`` when the block ends, and is gone if the block raises.

    Other processes see all of it or nothing; the last of several writers wins.
    """
    import tempfile

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes; the lock file stays behind, empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
