"""Who runs this step: admission, the token budget, chunked prefill, preemption.

Owns: the running and waiting sequences and the decision which tokens a step computes. Must not know: tensors, text, sampling, time.

There is no prefill or decode phase. Each sequence wants the tokens that it has beyond those computed; a step hands out the token
budget: the oldest running sequence first, then those that want one token, then the rest in order of service, then waiting ones.
What wants one token always gets it; what wants more shares the rest of the budget.

Invariants:
1. A sequence that was accepted fits the pool alone, whatever its length up to ``max_tokens`` (checked at the door).
2. The oldest running sequence that wants tokens is never preempted; so at least one sequence always advances.
3. If sequences wait and none runs, the first of them is admitted, or its prefix is being read from disk, which ends.
   Of both, blocks that a transfer to or from a file holds are excepted: who needs them waits until it ends.
4. No sequence is admitted in a step in which a running one could not get its blocks.
5. The order of service decides admission; the one exception is a sequence that waits for a prefix which a running sequence is
   about to finish, or which is being read from disk: those behind it may go first.
6. A running sequence that wants no token (its next one is chosen together with others') keeps its blocks as long as nobody needs
   them; one that lost them waits for its token outside the queue.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import chain, count, islice

from octavo.errors import CapacityError
from octavo.memory.kv_manager import KVManager, PrefixMatch
from octavo.scheduler.admission_room import AdmissionRoom
from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.prefix_reader import PrefixReader
from octavo.scheduler.prompt_budget import PromptBudget
from octavo.scheduler.running_set import RunningSet
from octavo.scheduler.sequence import Sequence, SequenceStatus, WaitReason, by_arrival
from octavo.scheduler.victims import choose_victim, preemption_cost
from octavo.scheduler.waiting_queue import WaitingQueue

LETS_OTHERS_PASS = (WaitReason.PREFIX_IN_FLIGHT, WaitReason.PREFIX_BEING_READ)  # see invariant 5


@dataclass(frozen=True)
class SchedulerLimits:
    """Bounds of a step.

    Attributes:
        max_num_seqs: most sequences that run at once.
        max_num_batched_tokens: the token budget of one step.
        watermark_blocks: free blocks kept back when admitting, so that running sequences can grow a little.
        attention_parity_tokens: the context over which attending costs as much as the rest of computing a token; None: not counted.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    watermark_blocks: int = 0
    attention_parity_tokens: int | None = None


class Scheduler:
    """Decides step by step which tokens are computed.

    Attributes:
        prefix_reader: the tier below memory; None = what is evicted is gone.
        lacks_blocks: in the newest step a running sequence lost its blocks, or a waiting one was not admitted, for want of blocks.
    """

    def __init__(self, kv: KVManager, limits: SchedulerLimits):
        self.kv = kv
        self.limits = limits
        self.prefix_reader: PrefixReader | None = None
        self.waiting = WaitingQueue()
        self._running_set = RunningSet(limits.max_num_seqs)
        self.running = self._running_set.sequences  # in order of arrival
        self._arrivals = count()
        self._prompt_budget = PromptBudget(limits.attention_parity_tokens)
        self._room = AdmissionRoom(
            kv,
            max_num_seqs=limits.max_num_seqs,
            max_step_tokens=limits.max_num_batched_tokens,
            watermark_blocks=limits.watermark_blocks,
        )
        self._oldest: Sequence | None = None  # of the running sequences that want tokens
        self._batch = ScheduledBatch()
        self.is_admitting = True  # False: as long as one runs, none is admitted
        self._was_denied = self.lacks_blocks = False

    # ---- coming and going

    def check_capacity(self, num_prompt_tokens: int, max_tokens: int, num_choices: int = 1) -> None:
        """Refuses at the door what can never run.

        Args:
            max_tokens: most tokens of the sequence, prompt included.

        Raises:
            CapacityError: the pool or the number of sequences is too small even for this request alone.
        """
        if num_choices > self.limits.max_num_seqs:
            raise CapacityError(
                f"n={num_choices} choices are more than the {self.limits.max_num_seqs} sequences that may run at once",
                hint=f"ask for fewer, or start with max_num_seqs={num_choices}",
            )
        step_tokens = self.limits.max_num_batched_tokens
        needed = self.kv.blocks_needed(max_tokens, step_tokens)
        if needed > self.kv.largest_capacity:
            fits = self.kv.max_tokens_alone(step_tokens)
            raise CapacityError(
                f"a prompt of {num_prompt_tokens} tokens and up to {max_tokens - num_prompt_tokens} more need {needed} KV blocks "
                f"({max_tokens} tokens); the whole pool has {self.kv.largest_capacity} ({fits} tokens)",
                hint="raise kv_memory, or lower max_tokens",
            )

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence that `check_capacity` let in; a pool that was made smaller grows to what it needs alone."""
        needed = self.kv.blocks_needed(sequence.max_tokens, self.limits.max_num_batched_tokens)
        if needed > self.kv.capacity:
            self.kv.resize(needed)
        sequence.arrival = next(self._arrivals)
        self.waiting.add(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Starts ``child``, which holds the parent's computed tokens, beside its running parent.

        The parent was admitted with a seat for each of its choices, so a row is free.
        """
        assert parent.cache is not None and parent.num_choices > 1, "a fork needs a running parent with seats to give"
        parent.num_choices -= 1
        child.arrival = next(self._arrivals)
        self._start_on_blocks_of(parent, child)

    def reserve_arrivals(self, num_arrivals: int) -> list[int]:
        """Returns places in the order of arrival for sequences that come later; each sequence has one of its own."""
        return list(islice(self._arrivals, num_arrivals))

    def branch(self, parent: Sequence, child: Sequence) -> None:
        """Adds ``child``, whose tokens begin with the parent's and whose arrival is set.

        It starts on the parent's blocks if the parent runs and there is a seat; else it is queued.
        """
        if parent.cache is None or self._room.count_seats(self.running) == 0:
            self.waiting.add(child)
            return
        self._start_on_blocks_of(parent, child)

    def resume(self, sequence: Sequence) -> None:
        """Queues a sequence again that was suspended and has a new token; nothing happens to any other."""
        if sequence.status is SequenceStatus.SUSPENDED:
            sequence.status = SequenceStatus.WAITING
            self.waiting.add(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out for good, in whatever state it is; its blocks return to the pool."""
        if sequence.status is SequenceStatus.RUNNING:
            self._release(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED

    @property
    def has_work(self) -> bool:
        """True while any sequence runs or waits."""
        return bool(self.running) or len(self.waiting) > 0

    # ---- one step

    def schedule(self) -> ScheduledBatch:
        """Hands out the token budget and returns what the step computes.

        Side effects: takes KV blocks; may preempt, admit and start sequences.
        """
        self._batch = ScheduledBatch()
        self._was_denied = self.lacks_blocks = False
        decodes, prefills, lacking = self._by_need()
        self._prompt_budget.start(self.limits.max_num_batched_tokens, len(decodes))
        is_oldest_first = bool(prefills) and prefills[0] is self._oldest  # the oldest goes before the decodes
        if is_oldest_first:
            self._schedule_prefill(prefills[0])
        self._schedule_decodes(decodes, lacking)
        for sequence in prefills[is_oldest_first:]:
            if sequence.status is SequenceStatus.RUNNING:
                self._schedule_prefill(sequence)
        self.lacks_blocks = self._was_denied
        if not self._was_denied:
            self._admit(prefills)
        while not self._batch.sequences and self._suspend_one():
            self._admit([])
        self.waiting.end_step()
        self._running_set.tell(self._batch)
        self._batch.block_copies = self.kv.drain_copies()
        return self._batch

    def update(self, batch: ScheduledBatch) -> None:
        """Records that the batch was computed; call before appending the sampled tokens."""
        for sequence, start, num_tokens in zip(batch.sequences, batch.starts, batch.counts, strict=True):
            cache = sequence.cache
            assert cache is not None, f"sequence {sequence.sequence_id} lost its blocks during the step"
            if start + num_tokens < cache.next_commit_tokens:
                cache.num_computed_tokens = start + num_tokens
            else:
                self.kv.commit(cache, sequence.token_ids, start + num_tokens)

    def _by_need(self) -> tuple[list[Sequence], list[Sequence], list[int]]:
        """Returns the running sequences that want one token, those that want more in order of service, the oldest first, and the
        places of those of the first that have no slot for it yet.

        Side effects: finds the oldest of all.
        """
        decodes: list[Sequence] = []
        prefills: list[Sequence] = []
        lacking: list[int] = []
        for sequence in self.running:
            cache = sequence.cache
            assert cache is not None, "a running sequence holds a cache"
            start = cache.num_computed_tokens
            num_wanted = len(sequence.token_ids) - start
            if num_wanted == 1:
                if start >= cache.num_writable_tokens:
                    lacking.append(len(decodes))
                decodes.append(sequence)
            elif num_wanted > 1:
                prefills.append(sequence)
        self._oldest = min(decodes[:1] + prefills[:1], key=by_arrival, default=None)
        if len(prefills) > 1:
            prefills.sort(key=lambda sequence: (sequence is not self._oldest, sequence.rank))
        return decodes, prefills, lacking

    def _schedule_decodes(self, decodes: list[Sequence], lacking: list[int]) -> None:
        """Hands out one token to each that has a slot for it, or gets one: those at the places ``lacking`` have none."""
        for place in lacking:
            if decodes[place].cache is not None:  # else one before it took its blocks
                self._make_room(decodes[place], decodes[place].num_tokens, decodes[:place])
        if self._was_denied:
            decodes = list(filter(_has_slot, decodes))
        self._batch.add_decodes(decodes, [len(sequence.token_ids) - 1 for sequence in decodes])

    def _schedule_prefill(self, sequence: Sequence) -> None:
        """Hands out as much of the prompt budget as the sequence can use."""
        start = sequence.num_computed_tokens
        num_tokens = self._prompt_budget.allowed(start, sequence.num_tokens - start)
        if num_tokens > 0 and self._make_room(sequence, start + num_tokens):
            self._hand_out_prompt(sequence, start, num_tokens)

    def _hand_out_prompt(self, sequence: Sequence, start: int, num_tokens: int) -> None:
        self._batch.add(sequence, start, num_tokens)
        self._prompt_budget.spend(start, num_tokens)
        num_lost = sequence.num_lost_tokens
        if start < num_lost:  # never of a decode: what is lost was computed, and its token is new since
            sequence.num_recomputed_tokens += min(num_lost, start + num_tokens) - start

    def _make_room(self, sequence: Sequence, num_tokens: int, before: SequenceOf[Sequence] = ()) -> bool:
        """Takes the blocks for a running sequence's next tokens, from others if need be; returns whether it got them.

        Args:
            before: sequences that are to have a token in this step if they have a slot, beside those in the batch.
        """
        cache = sequence.cache
        assert cache is not None, "a running sequence holds a cache"
        while not self.kv.allocate(cache, num_tokens):
            taken = set(map(id, chain(self._batch.sequences, filter(_has_slot, before))))
            victim = choose_victim(sequence, self._oldest, (other for other in self.running if id(other) not in taken))
            if victim is None:
                self._was_denied = True
                return False
            victim.preempted_by.append(sequence.sequence_id)
            self._preempt(victim)
            if victim is sequence:
                return False
        self._running_set.note_table(sequence)
        return True

    # ---- preemption

    def preempt_youngest(self) -> Sequence | None:
        """Takes the blocks of the sequence that arrived last, between two steps; None when only the oldest runs."""
        if len(self.running) < 2:
            return None
        victim = self.running[-1]
        self._preempt(victim)
        return victim

    def largest_need(self) -> int:
        """Returns the most blocks that one of the sequences here needs to reach its end: with fewer, it might never."""
        sequences = chain(self.running, self.waiting)
        longest = max((sequence.max_tokens for sequence in sequences), default=0)
        return self.kv.blocks_needed(longest, self.limits.max_num_batched_tokens) if longest else 0

    def _suspend_one(self) -> bool:
        """Takes the blocks of a running sequence that wants no token, when nobody could run; False if there is none."""
        idle = [sequence for sequence in self.running if sequence.num_computed_tokens == sequence.num_tokens]
        if not idle or not self.waiting:
            return False
        self._preempt(min(idle, key=preemption_cost))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        wants_tokens = sequence.num_computed_tokens < sequence.num_tokens
        self._release(sequence)
        sequence.num_preemptions += 1
        sequence.restore = None
        sequence.status = SequenceStatus.SUSPENDED
        if wants_tokens:
            self.resume(sequence)
        self._running_set.note_preempted(sequence)
        self._was_denied = True

    def _release(self, sequence: Sequence) -> None:
        assert sequence.cache is not None, "a running sequence holds a cache"
        sequence.num_lost_tokens = max(sequence.num_lost_tokens, sequence.cache.num_computed_tokens)
        self.kv.free(sequence.cache, sequence.token_ids)
        sequence.cache = None
        self._running_set.remove(sequence)

    # ---- admission

    def _admit(self, prefills: list[Sequence]) -> None:
        """Starts waiting sequences while budget, seats and blocks last; ``prefills`` are the running ones that wanted more than
        one token when the step began."""
        if not self.waiting:
            return
        self._room.start(self.running, prefills)
        for sequence in list(islice(self.waiting, self.limits.max_num_seqs)):
            reason = self._try_to_start(sequence)
            if reason is not None:
                sequence.wait_reasons[reason] += 1
                self.lacks_blocks |= reason is WaitReason.NO_BLOCKS
                if reason not in LETS_OTHERS_PASS:
                    return

    def _try_to_start(self, sequence: Sequence) -> WaitReason | None:
        """Starts a waiting sequence, or the reading of its prefix; returns why it still waits, None if it runs."""
        if self.running and not self.is_admitting:
            return WaitReason.MEMORY_SHORT
        if self._prompt_budget.is_spent:
            return WaitReason.BUDGET_SPENT
        if sequence.num_choices > self._room.num_seats:
            return WaitReason.NO_SEAT
        if sequence.awaited is not None and sequence.awaited.is_awaited:
            return WaitReason.PREFIX_IN_FLIGHT
        if sequence.restore is not None and sequence.restore.is_pending:
            return WaitReason.PREFIX_BEING_READ
        match = self.kv.match(sequence.token_ids, sequence.namespace) if sequence.reads_cached_prefix else None
        sequence.awaited = match if match is not None and match.is_awaited else None
        if sequence.awaited is not None:
            return WaitReason.PREFIX_IN_FLIGHT
        if self.running and not self._room.has_blocks(sequence, match):
            return WaitReason.NO_BLOCKS
        if match is not None and self._begins_read(sequence, match):
            return WaitReason.PREFIX_BEING_READ
        # A hit on a part of a block needs that block and its copy at once: in a pool just large enough, go without.
        is_open = self._open(sequence, match) or (not self.running and self._open(sequence, None))
        return None if is_open else WaitReason.NO_BLOCKS

    def _begins_read(self, sequence: Sequence, match: PrefixMatch) -> bool:
        if self.prefix_reader is None or sequence.restore is not None:
            return False
        sequence.restore = self.prefix_reader.begin_read(sequence, match)
        if sequence.restore is None:
            return False
        self._room.take_seats(sequence)
        return True

    def _open(self, sequence: Sequence, match: PrefixMatch | None) -> bool:
        end = match.find_end() if match is not None and sequence.num_hit_tokens is None else None
        cache = self.kv.open(sequence.token_ids, sequence.namespace, match)
        start = cache.num_computed_tokens
        num_tokens = self._prompt_budget.allowed(start, sequence.num_tokens - start)
        if not self.kv.allocate(cache, start + num_tokens):
            self.kv.free(cache, sequence.token_ids)
            return False
        self.waiting.remove(sequence)
        sequence.cache = cache
        if sequence.retentions:
            cache.retentions = sequence.retentions
        if sequence.num_hit_tokens is None:
            sequence.num_hit_tokens = start
            sequence.match_end = end
        self._start(sequence)
        self._hand_out_prompt(sequence, start, num_tokens)
        self._room.take_seats(sequence)
        self._room.promise_blocks(sequence)
        return True

    def _start_on_blocks_of(self, parent: Sequence, child: Sequence) -> None:
        assert parent.cache is not None, "a running sequence holds a cache"
        child.cache = self.kv.fork(parent.cache)
        child.num_hit_tokens = parent.num_hit_tokens
        self._start(child)

    def _start(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.RUNNING
        self._running_set.add(sequence)


def _has_slot(sequence: Sequence) -> bool:
    """Returns whether a sequence's next token has a slot."""
    return sequence.cache is not None and sequence.cache.num_computed_tokens < sequence.cache.num_writable_tokens
