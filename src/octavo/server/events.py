"""What happens in the server, for whoever listens.

Owns: the listeners and what waits for each. Must not know: who causes events, HTTP.

Invariants:
1. Nobody waits for a listener: one that lags behind loses its oldest events and is told how many.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_WAITING = 256  # events per listener


class Listener:
    """One reader of events."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING)
        self._num_lost = 0
        self._arrived = asyncio.Event()

    def put(self, event: dict[str, Any]) -> None:
        """Adds an event; the oldest one goes if there is no room."""
        self._num_lost += len(self._events) == MAX_WAITING
        self._events.append(event)
        self._arrived.set()

    async def take(self) -> list[dict[str, Any]]:
        """Returns what arrived, waiting for something."""
        await self._arrived.wait()
        self._arrived.clear()
        events = list(self._events)
        self._events.clear()
        if self._num_lost:
            events.insert(0, {"type": "events_lost", "count": self._num_lost})
            self._num_lost = 0
        return events


class EventBus:
    """Hands every event to every listener."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Gives a listener that gets everything from now on."""
        listener = Listener()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def publish(self, event: dict[str, Any]) -> None:
        """Tells all listeners."""
        for listener in self._listeners:
            listener.put(event)
