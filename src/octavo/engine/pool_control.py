"""The KV pool's size and its physical memory, between two steps.

Owns: what must go together when they change: scheduler, accounting and storage. Must not know: why they change.

Invariants:
1. The pool is never smaller than what the most demanding request in the engine needs to reach its end.
2. Only pages of blocks without content go back to the system.
"""

from octavo.memory.governor import PoolState
from octavo.runner.model_runner import ModelRunner
from octavo.scheduler.scheduler import Scheduler


class PoolControl:
    """Acts on one engine's pool. Call it between steps only."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner):
        self._scheduler = scheduler
        self._runner = runner

    def state(self) -> PoolState:
        """Returns the figures that decisions are made of. Cost: O(sequences)."""
        kv = self._scheduler.kv
        num_used = kv.capacity - kv.num_free_blocks
        return PoolState(
            block_bytes=self._runner.kv_block_bytes,
            num_blocks=kv.capacity,
            num_full_blocks=kv.largest_capacity,
            num_needed_blocks=self._scheduler.largest_need(),
            num_used_blocks=num_used,
            num_droppable_blocks=kv.num_committed_blocks - num_used,
            num_running=len(self._scheduler.running),
        )

    def resize(self, num_blocks: int) -> int:
        """Changes the number of blocks; the pages of retired ones go back to the system. Returns the capacity reached.

        Args:
            num_blocks: the capacity wanted. What sequences hold stays, and so does what a request in the engine needs; growing
                ends at the reserved storage.
        """
        kv = self._scheduler.kv
        reached = kv.resize(min(max(num_blocks, self._scheduler.largest_need()), kv.largest_capacity))
        self._runner.release_blocks(kv.drain_released())
        return reached

    def release(self, num_blocks: int) -> int:
        """Gives the pages of up to ``num_blocks`` blocks back that no sequence holds, empty ones first; returns of how many."""
        kv = self._scheduler.kv
        empty = kv.decommit(num_blocks)
        if len(empty) < num_blocks:
            kv.drop_cached(num_blocks - len(empty))
            empty += kv.decommit(num_blocks - len(empty))
        self._runner.release_blocks(empty)
        return len(empty)

    def release_idle(self, kept_bytes: int) -> int:
        """Gives back all pages of blocks that no sequence holds beyond ``kept_bytes`` of them; returns of how many blocks."""
        num_kept = kept_bytes // self._runner.kv_block_bytes
        return self.release(max(0, self.state().num_droppable_blocks - num_kept))

    def preempt_youngest(self) -> bool:
        """Takes the youngest sequence's blocks; False when only the oldest runs."""
        return self._scheduler.preempt_youngest() is not None

    def admit(self, is_admitting: bool) -> None:
        """Lets waiting sequences start beside running ones, or not."""
        self._scheduler.is_admitting = is_admitting
