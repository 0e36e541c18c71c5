"""Counters and gauges of an engine.

Owns: what is counted and when. Must not know: how it is shown.

Invariants:
1. Counters never fall.
2. Prefix-hit tokens count a sequence's first admission only; computing again after a preemption is counted apart.
"""

from collections import Counter
from dataclasses import dataclass, field

from octavo.engine.memory_guard import GuardStats, MemoryGuard
from octavo.engine.request import Request
from octavo.memory.kv_manager import MemoryStats
from octavo.runner.model_runner import ModelRunner
from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.scheduler import Scheduler
from octavo.tiers.disk_tier import DiskTier, TierStats


@dataclass(frozen=True)
class EngineStats:
    """A snapshot.

    Attributes:
        memory: the block pool's and prefix cache's figures.
        num_waiting: sequences that wait.
        num_preempted: those of them that have run before.
        num_peak_running: most sequences that ran at once.
        num_prompt_tokens, num_generated_tokens: of finished and aborted requests.
        num_computed_tokens: tokens that went through the model, recomputed ones included.
        schedule_seconds, execute_seconds, update_seconds: time in the three parts of all steps.
        finished: requests by their choices' finish reason.
        weights_bytes, workspace_bytes: memory by kind.
        kv_block_bytes: bytes of one KV block.
        disk: the disk cache's figures; None when there is none.
        guard: the memory guard's figures; None when there is none.
    """

    memory: MemoryStats
    num_running: int
    num_waiting: int
    num_preempted: int
    num_peak_running: int
    num_steps: int
    num_preemptions: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_computed_tokens: int
    schedule_seconds: float
    execute_seconds: float
    update_seconds: float
    finished: dict[str, int]
    weights_bytes: int
    workspace_bytes: int
    kv_block_bytes: int
    disk: TierStats | None = None
    guard: GuardStats | None = None


@dataclass
class StatsCollector:
    """Counts as the engine goes."""

    num_steps: int = 0
    num_preemptions: int = 0
    num_peak_running: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_computed_tokens: int = 0
    schedule_seconds: float = 0.0
    execute_seconds: float = 0.0
    update_seconds: float = 0.0
    finished: Counter[str] = field(default_factory=Counter)

    def count_step(self, batch: ScheduledBatch, schedule_seconds: float, execute_seconds: float, update_seconds: float) -> None:
        """Counts one computed step and the time of its parts."""
        self.num_steps += 1
        self.num_preemptions += len(batch.preempted)
        self.num_peak_running = max(self.num_peak_running, len(batch.sequences))
        self.num_computed_tokens += batch.num_tokens
        self.schedule_seconds += schedule_seconds
        self.execute_seconds += execute_seconds
        self.update_seconds += update_seconds

    def count_finished(self, request: Request) -> None:
        """Counts a request that left the engine."""
        self.num_prompt_tokens += len(request.prompt.token_ids)
        self.num_generated_tokens += request.num_generated_tokens
        for choice in request.choices:
            self.finished[choice.output.finish_reason or "abort"] += 1

    def snapshot(self, scheduler: Scheduler, runner: ModelRunner, tier: DiskTier | None, guard: MemoryGuard | None) -> EngineStats:
        """Returns the figures of this moment."""
        return EngineStats(
            memory=scheduler.kv.stats(),
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_preempted=sum(sequence.num_preemptions > 0 for sequence in scheduler.waiting),
            num_peak_running=self.num_peak_running,
            num_steps=self.num_steps,
            num_preemptions=self.num_preemptions,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generated_tokens=self.num_generated_tokens,
            num_computed_tokens=self.num_computed_tokens,
            schedule_seconds=self.schedule_seconds,
            execute_seconds=self.execute_seconds,
            update_seconds=self.update_seconds,
            finished=dict(self.finished),
            weights_bytes=runner.weights_bytes,
            workspace_bytes=runner.workspace_bytes,
            kv_block_bytes=runner.kv_block_bytes,
            disk=None if tier is None else tier.stats(),
            guard=None if guard is None else guard.stats(),
        )
