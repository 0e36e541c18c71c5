"""What is done for an engine between its steps: its memory, its idle times, its stalls.

Owns: when idle memory goes back, and the form of memory events. Must not know: threads, HTTP.
"""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from octavo.engine.stall_watch import StallWatch
from octavo.server.config import ServerConfig

if TYPE_CHECKING:
    from octavo.engine.engine import Engine
    from octavo.errors import StallError

IDLE_KEPT_BYTES = 64 * 2**20  # of cached blocks: what the next turn of a few chats needs
LOOK_SECONDS = 1.0  # how often an engine without work is looked after


class Caretaker:
    """Looks after one engine, on the engine's thread."""

    def __init__(self, engine: "Engine", config: ServerConfig):
        self._engine = engine
        self._idle_release = config.idle_release
        self._stalls = StallWatch(engine, config.stall_timeout)
        self._idle_since: float | None = None

    def tend(self) -> list[dict[str, Any]]:
        """Does what is due and returns the events to be told; call it at every turn, with or without a step."""
        guard = self._engine.guard
        if guard is None:
            return []
        guard.tend()
        if self._engine.has_unfinished_requests:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = time.monotonic()
        elif self._idle_release is not None and time.monotonic() - self._idle_since >= self._idle_release:
            guard.release_idle(IDLE_KEPT_BYTES)
            self._idle_since = time.monotonic()
        return [{"type": "memory", **asdict(event)} for event in guard.take_events()]

    def check_progress(self) -> "StallError | None":
        """Returns what is to be told to a request that stands in the way of all others; call it after every step."""
        return self._stalls.check()
