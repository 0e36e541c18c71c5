"""What to do with the KV pool when the machine runs short of memory, and when it no longer does.

Owns: the decision. Must not know: where readings come from, how an action is carried out.

Invariants:
1. What costs least comes first: admission stops, then cached blocks go, then the pool shrinks to what is in memory, then the
   youngest sequence is preempted, one at a time, never the last one.
2. The pool never gets smaller than what an accepted request needs to reach its end.
3. Nothing is given back to the pool before memory has been enough for `CALM_SECONDS`, and the pool grows only above a second,
   higher mark: what was taken for a shortage does not cause the next one.
"""

from dataclasses import dataclass
from enum import Enum

# Tasks that waited for memory this long, in percent of the last ten seconds, make the reserve count double: pages that the system
# calls available are then in use (programs' own code, for one).
SOME_STALL_PERCENT, FULL_STALL_PERCENT = 20.0, 5.0
# Shortages are filled up to a second mark, and above it the pool grows. It is higher by this part of the reserve, but by no more
# than this part of the whole pool: an emptied pool must be able to lift what is available above it, or it would stay empty.
HIGH_MARK_RESERVE_RATIO, HIGH_MARK_POOL_RATIO = 0.25, 0.5
CALM_SECONDS = 5.0
GROWTH_STEPS = 8  # the pool comes back in so many


@dataclass(frozen=True)
class MemoryReading:
    """The machine at one moment.

    Attributes:
        available_bytes: what a process can still get.
        some_percent, full_percent: time in which some tasks, or all, waited for memory; 0 where the system does not say.
    """

    available_bytes: int
    some_percent: float = 0.0
    full_percent: float = 0.0


@dataclass(frozen=True)
class PoolState:
    """The KV pool at one moment.

    Attributes:
        num_full_blocks: the capacity without a governor.
        num_needed_blocks: what the most demanding accepted request needs to reach its end.
        num_droppable_blocks: blocks in memory that no sequence holds.
    """

    block_bytes: int
    num_blocks: int
    num_full_blocks: int
    num_needed_blocks: int
    num_used_blocks: int
    num_droppable_blocks: int
    num_running: int


class ActionKind(Enum):
    """What can be done, in the order of its cost, and the ways back."""

    STOP_ADMITTING = "stop_admitting"
    DROP = "drop_blocks"  # pages of that many blocks that nobody holds go back to the system
    SHRINK = "shrink_pool"  # to that many blocks
    PREEMPT = "preempt_youngest"
    ADMIT = "admit_again"
    GROW = "grow_pool"  # to that many blocks


@dataclass(frozen=True)
class Action:
    """One thing to do, with a number of blocks where the kind has one."""

    kind: ActionKind
    num_blocks: int = 0


class Governor:
    """Decides, reading by reading.

    Args:
        reserve_bytes: below so much available memory the machine is short.

    Attributes:
        is_short: whether it was at the last reading.
        is_admitting: False from a shortage until memory has been enough for a while.
    """

    def __init__(self, reserve_bytes: int):
        self.reserve_bytes = reserve_bytes
        self.is_short = False
        self.is_admitting = True
        self._calm_since: float | None = None

    def decide(self, reading: MemoryReading, pool: PoolState, now: float) -> list[Action]:
        """Returns what to do now, in order; ``now`` is in seconds and never falls."""
        is_stalling = reading.some_percent >= SOME_STALL_PERCENT or reading.full_percent >= FULL_STALL_PERCENT
        low_mark = self.reserve_bytes * (2 if is_stalling else 1)
        self.is_short = reading.available_bytes < low_mark
        if self.is_short:
            self._calm_since = None
            return self._give_back(_high_mark(low_mark, pool) - reading.available_bytes, pool)
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < CALM_SECONDS:
            return []
        return self._recover(reading.available_bytes, pool)

    def _give_back(self, missing_bytes: int, pool: PoolState) -> list[Action]:
        actions = []
        if self.is_admitting:
            self.is_admitting = False
            actions.append(Action(ActionKind.STOP_ADMITTING))
        wanted = -(-missing_bytes // pool.block_bytes)
        num_dropped = min(wanted, pool.num_droppable_blocks)
        if num_dropped:
            actions.append(Action(ActionKind.DROP, num_dropped))
        in_memory = pool.num_used_blocks + pool.num_droppable_blocks - num_dropped
        target = max(pool.num_needed_blocks, in_memory)
        if target < pool.num_blocks:
            actions.append(Action(ActionKind.SHRINK, target))
        if num_dropped < wanted and pool.num_running > 1:
            actions.append(Action(ActionKind.PREEMPT))
        return actions

    def _recover(self, available_bytes: int, pool: PoolState) -> list[Action]:
        actions = []
        if not self.is_admitting:
            self.is_admitting = True
            actions.append(Action(ActionKind.ADMIT))
        if pool.num_blocks < pool.num_full_blocks and available_bytes >= _high_mark(self.reserve_bytes, pool):
            affordable = (available_bytes - self.reserve_bytes) // pool.block_bytes  # more than are in memory
            step = -(-pool.num_full_blocks // GROWTH_STEPS)
            in_memory = pool.num_used_blocks + pool.num_droppable_blocks
            target = min(pool.num_full_blocks, pool.num_blocks + step, in_memory + affordable)
            if target > pool.num_blocks:
                actions.append(Action(ActionKind.GROW, target))
        return actions


def _high_mark(low_mark: int, pool: PoolState) -> int:
    """Returns up to how many available bytes a shortage is filled."""
    pool_bytes = pool.num_full_blocks * pool.block_bytes
    return low_mark + int(min(low_mark * HIGH_MARK_RESERVE_RATIO, pool_bytes * HIGH_MARK_POOL_RATIO))
