"""Where saved sessions lie.

Owns: the way from a name to a path, and what is there. Must not know: what is in a session, HTTP.

Invariants:
1. No name leads out of the directory, and none to another namespace's sessions.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from octavo.errors import SnapshotError
from octavo.tiers.session_file import read_description

SESSION_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
SUFFIX = ".session"


@dataclass(frozen=True)
class ListedSession:
    """A session in the directory.

    Attributes:
        saved_at: seconds since 1970.
    """

    name: str
    num_tokens: int
    num_bytes: int
    saved_at: float


class SessionDirectory:
    """The sessions of all namespaces, each in a folder of its own."""

    def __init__(self, root: Path):
        self._root = root

    def path(self, name: str, namespace: Hashable) -> Path:
        """Returns where a session of that name is or would be."""
        assert re.fullmatch(SESSION_NAME, name), "names are checked before they come here"
        return self._folder(namespace) / f"{name}{SUFFIX}"

    def make_room(self, namespace: Hashable) -> None:
        """Makes the namespace's folder.

        Raises:
            SnapshotError: the disk does not let us.
        """
        try:
            self._folder(namespace).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as cause:
            raise SnapshotError(f"the directory of sessions cannot be made: {cause.strerror}") from cause

    def list(self, namespace: Hashable) -> list[ListedSession]:
        """Returns the namespace's sessions by name; files that are none, or say nothing whole of themselves, are left out."""
        listed = []
        for path in sorted(self._folder(namespace).glob(f"*{SUFFIX}")):
            try:
                description, num_bytes = read_description(path), path.stat().st_size
            except (SnapshotError, OSError):
                continue
            listed.append(
                ListedSession(path.name.removesuffix(SUFFIX), len(description.token_ids), num_bytes, description.saved_at)
            )
        return listed

    def _folder(self, namespace: Hashable) -> Path:
        return self._root / (sha256(repr(namespace).encode()).hexdigest()[:32] if namespace else "default")
