"""Watches the machine's memory and makes the KV pool give way.

Owns: when the memory is read, what is told of what was done, and the figures. Must not know: how decisions are made.

Invariants:
1. It acts between steps only, and reads the system's files at most once in `READ_SECONDS`.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo.engine.memory_budget import MemoryBudget, format_bytes
from octavo.engine.pool_control import PoolControl
from octavo.memory.governor import Action, ActionKind, Governor, MemoryReading
from octavo.planner.host_memory import read_host_memory, read_pressure

READ_SECONDS = 0.25  # a reading takes some 0.2 ms
MAX_EVENTS = 256  # kept for whoever asks; the log has them all
logger = logging.getLogger("octavo.memory")


@dataclass(frozen=True)
class MemoryEvent:
    """Something that the guard did, with a number of blocks where there is one."""

    action: str
    num_blocks: int
    available_bytes: int


@dataclass(frozen=True)
class GuardStats:
    """A snapshot.

    Attributes:
        available_bytes: what the machine could give at the last reading.
        is_short: whether that was below the reserve.
        is_admitting: whether waiting sequences may start beside running ones.
        actions: how often each was taken.
    """

    budget_bytes: int
    reserve_bytes: int
    available_bytes: int
    is_short: bool
    is_admitting: bool
    actions: dict[str, int]


def read_memory() -> MemoryReading:
    """Returns the machine's memory now."""
    stalls = read_pressure()
    available = read_host_memory().allocatable_bytes
    return MemoryReading(available) if stalls is None else MemoryReading(available, stalls.some_percent, stalls.full_percent)


class MemoryGuard:
    """Keeps one engine from taking what the machine needs.

    Args:
        read: tells the machine's memory.
        clock: seconds that never fall.
    """

    def __init__(
        self,
        pool: PoolControl,
        budget: MemoryBudget,
        *,
        read: Callable[[], MemoryReading] = read_memory,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._pool = pool
        self.budget = budget
        self._governor = Governor(budget.reserve_bytes)
        self._read = read
        self._clock = clock
        self._next_reading = 0.0
        self._available_bytes = budget.available_bytes
        self._actions: Counter[str] = Counter()
        self._events: deque[MemoryEvent] = deque(maxlen=MAX_EVENTS)

    def tend(self) -> None:
        """Looks at the memory when it is time to, and does what is to be done."""
        now = self._clock()
        if now < self._next_reading:
            return
        self._next_reading = now + READ_SECONDS
        reading = self._read()
        self._available_bytes = reading.available_bytes
        for action in self._governor.decide(reading, self._pool.state(), now):
            self._note(action.kind.value, self._apply(action))

    def release_idle(self, kept_bytes: int) -> None:
        """Gives back the pages of blocks that no sequence holds beyond ``kept_bytes``."""
        num_blocks = self._pool.release_idle(kept_bytes)
        if num_blocks:
            self._note("release_idle", num_blocks)

    def take_events(self) -> list[MemoryEvent]:
        """Returns what was done since the last call, the latest at the end."""
        events = list(self._events)
        self._events.clear()
        return events

    def stats(self) -> GuardStats:
        """Returns the figures of this moment."""
        return GuardStats(
            budget_bytes=self.budget.budget_bytes,
            reserve_bytes=self.budget.reserve_bytes,
            available_bytes=self._available_bytes,
            is_short=self._governor.is_short,
            is_admitting=self._governor.is_admitting,
            actions=dict(self._actions),
        )

    def _apply(self, action: Action) -> int:
        """Does it and returns the number of blocks to tell."""
        match action.kind:
            case ActionKind.STOP_ADMITTING | ActionKind.ADMIT:
                self._pool.admit(action.kind is ActionKind.ADMIT)
            case ActionKind.DROP:
                return self._pool.release(action.num_blocks)
            case ActionKind.SHRINK | ActionKind.GROW:
                return self._pool.resize(action.num_blocks)
            case ActionKind.PREEMPT:
                self._pool.preempt_youngest()
        return 0

    def _note(self, action: str, num_blocks: int) -> None:
        self._actions[action] += 1
        self._events.append(MemoryEvent(action, num_blocks, self._available_bytes))
        logger.warning(
            "memory: %s%s; %s available, reserve %s",
            action.replace("_", " "),
            f" ({num_blocks} blocks)" if num_blocks else "",
            format_bytes(self._available_bytes),
            format_bytes(self.budget.reserve_bytes),
        )
