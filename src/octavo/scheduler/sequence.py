"""One token stream and where it stands.

Owns: a sequence's token ids, its place in the order of service, and its hold on KV memory. Must not know: text, sampling, arrays.

Invariants:
1. ``cache`` is set exactly while the sequence is running.
2. ``num_computed_tokens <= num_tokens``; the sequence wants ``num_tokens - num_computed_tokens`` more, whatever the reason.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

from octavo.memory.claims import Retention
from octavo.memory.match_end import MatchEnd
from octavo.memory.prefix_match import PrefixMatch
from octavo.memory.restore import Restore
from octavo.memory.sequence_cache import SequenceCache


class SequenceStatus(Enum):
    """Where a sequence is: not yet or no longer holding blocks, holding blocks, wanting none until it gets a token, or done."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    FINISHED = "finished"


class WaitReason(Enum):
    """Why a sequence whose turn came was not admitted in a step."""

    BUDGET_SPENT = "the step's token budget was spent"
    NO_SEAT = "as many sequences ran as may at once"
    NO_BLOCKS = "too few KV blocks were free beside those that running sequences still need"
    MEMORY_SHORT = "the machine was short of memory"
    PREFIX_IN_FLIGHT = "the same prefix was being computed or read for another sequence"
    PREFIX_BEING_READ = "its prefix was being read from disk"


@dataclass(eq=False)
class Sequence:
    """The unit that the scheduler moves.

    Attributes:
        token_ids: prompt, then the tokens sampled so far.
        max_tokens: most tokens that the sequence may ever have, prompt included.
        priority: lower runs earlier.
        namespace: sequences share KV only within equal namespaces.
        num_choices: sequences that will fork from this one when its prompt is computed, itself included.
        retentions: what is asked for its blocks when they become cached.
        reads_cached_prefix: False when every prompt token must be computed (its logits are wanted).
        arrival: the scheduler's running number; ties of priority go by it.
        row: the sequence's row in the runner's arrays while it runs.
        num_hit_tokens: tokens found in the prefix cache when it was first admitted; None before.
        awaited: the match whose missing part a running sequence is computing; None when there is nothing to wait for.
        restore: the part of its prefix that is or was read from disk since it last began to wait; None when nothing was.
        num_disk_tokens: tokens that did not have to be computed because they were read.
        match_end: why the prefix found at the first admission was not longer; None before, and where none was looked for.
        queued_step: the step before which it began to wait the last time.
        num_waited_steps: steps that it waited for until it last ran.
        wait_reasons: of these, the steps in which its turn came and it was not admitted, by reason.
        preempted_by: ids of the sequences that took its blocks.
        num_lost_tokens: most tokens that were computed when its blocks were taken; to compute one below it is to do so again.
    """

    sequence_id: int
    token_ids: list[int]
    max_tokens: int
    priority: int = 0
    namespace: Hashable = ()
    num_choices: int = 1
    reads_cached_prefix: bool = True
    retentions: tuple[Retention, ...] = ()
    status: SequenceStatus = SequenceStatus.WAITING
    arrival: int = -1
    row: int = -1
    cache: SequenceCache | None = field(default=None, repr=False)
    num_preemptions: int = 0
    num_lost_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_hit_tokens: int | None = None
    awaited: PrefixMatch | None = field(default=None, repr=False)
    restore: Restore | None = field(default=None, repr=False)
    num_disk_tokens: int = 0
    match_end: MatchEnd | None = None
    queued_step: int = 0
    num_waited_steps: int = 0
    wait_reasons: Counter[WaitReason] = field(default_factory=Counter)
    preempted_by: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known so far."""
        return len(self.token_ids)

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV is in the cache now."""
        return 0 if self.cache is None else self.cache.num_computed_tokens

    @property
    def rank(self) -> tuple[int, int]:
        """The order of service: priority, then arrival."""
        return self.priority, self.arrival


by_arrival = attrgetter("arrival")
