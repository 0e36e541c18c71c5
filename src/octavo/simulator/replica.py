"""One simulated machine: the real scheduler over a memory, with a clock in the place of a model.

Owns: the machine's sequences and its step in progress. Must not know: other machines, or where requests come from.
"""

from dataclasses import dataclass
from itertools import compress

from octavo.errors import CapacityError
from octavo.memory.kv_manager import KVManager
from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.scheduler import Scheduler, SchedulerLimits
from octavo.scheduler.sequence import Sequence
from octavo.simulator.memory_split import paged_split
from octavo.simulator.reserving_memory import ReservingMemory
from octavo.simulator.statistics import Statistics
from octavo.simulator.step_time import StepTime
from octavo.simulator.tokens import Tokens
from octavo.simulator.workload import Request

Memory = KVManager | ReservingMemory
STEPS_PER_SPLIT = 16  # the memory is looked at in every 16th step: looking costs as much as the step


@dataclass(eq=False, kw_only=True)
class SimulatedSequence(Sequence):
    """A request on its way."""

    request: Request
    first_token_s: float = 0.0


class Replica:
    """A machine that computes one step after the other.

    Args:
        max_model_len: most tokens of a sequence.

    Attributes:
        num_open_requests: requests that it was given and did not finish.
    """

    def __init__(self, memory: Memory, limits: SchedulerLimits, step_time: StepTime, statistics: Statistics, max_model_len: int):
        self._memory = memory
        self._max_model_len = max_model_len
        self._scheduler = Scheduler(memory, limits)  # type: ignore[arg-type]  # a ReservingMemory has the methods it calls
        self._step_time = step_time
        self._statistics = statistics
        self._batch: ScheduledBatch | None = None
        self._num_steps = 0
        self._num_added = 0
        self.num_open_requests = 0

    def add(self, request: Request) -> bool:
        """Queues a request; returns False if it could never run here."""
        if request.num_tokens > self._max_model_len:
            return False
        try:
            self._scheduler.check_capacity(request.num_prompt_tokens, request.num_tokens)
        except CapacityError:
            return False
        tokens = Tokens(request)
        self._num_added += 1
        self.num_open_requests += 1
        self._scheduler.add(SimulatedSequence(self._num_added, tokens, tokens.final_length, request=request))
        return True

    @property
    def can_start(self) -> bool:
        """True while work waits and no step is in progress."""
        return self._batch is None and self._scheduler.has_work

    def start_step(self) -> float:
        """Schedules a step and returns how long it takes, in seconds."""
        batch = self._batch = self._scheduler.schedule()
        assert batch.sequences, "work waits and nothing runs"
        num_moved_slots = self._memory.drain_moved_slots() if isinstance(self._memory, ReservingMemory) else 0
        duration_s = self._step_time.seconds(batch, num_moved_slots)
        self._statistics.num_moved_slots += num_moved_slots
        self._statistics.count_step(len(self._scheduler.running), batch.num_tokens, len(batch.preempted), duration_s)
        self._num_steps += 1
        if self._num_steps % STEPS_PER_SPLIT == 0 and self._scheduler.lacks_blocks:
            self._count_split(duration_s)
        return duration_s

    def end_step(self, now_s: float) -> list[Request]:
        """Samples a token of each sequence that is up to date, and returns the requests that are finished."""
        batch, self._batch = self._batch, None
        assert batch is not None, "no step is in progress"
        self._scheduler.update(batch)
        finished = []
        for sequence in compress(batch.sequences, batch.are_last_chunks):
            if len(sequence.token_ids) == sequence.num_prompt_tokens:
                sequence.first_token_s = now_s
            if sequence.token_ids.grow():
                finished.append(self._finish(sequence, now_s))
        return finished

    def _finish(self, sequence: SimulatedSequence, now_s: float) -> Request:
        self._scheduler.finish(sequence)
        self.num_open_requests -= 1
        request, statistics = sequence.request, self._statistics
        statistics.num_prompt_tokens += sequence.num_prompt_tokens
        statistics.num_hit_tokens += sequence.num_hit_tokens or 0
        statistics.num_recomputed_tokens += sequence.num_recomputed_tokens
        statistics.count_finished(len(request.reply), request.arrival_s, sequence.first_token_s, now_s)
        return request

    def _count_split(self, duration_s: float) -> None:
        memory = self._memory
        self._statistics.split.add(memory.split() if isinstance(memory, ReservingMemory) else paged_split(memory), duration_s)
