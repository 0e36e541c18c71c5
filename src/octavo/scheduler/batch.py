"""What one step computes, as plain data.

Owns: the record that goes from the scheduler to the runner. Must not know: arrays.

Invariants:
1. A sequence occurs at most once; every entry has at least one token.
2. ``num_tokens`` is the sum over the entries and at most the token budget.
"""

from dataclasses import dataclass, field

from octavo.scheduler.sequence import Sequence


@dataclass(slots=True)
class ScheduledSequence:
    """One sequence's part of a step: its tokens ``start .. start + num_tokens`` are computed.

    Attributes:
        is_last_chunk: the step computes all tokens that the sequence has, so that its next one can be sampled.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    is_last_chunk: bool


@dataclass(slots=True)
class ScheduledBatch:
    """One step.

    Attributes:
        entries: in the order in which tokens were handed out.
        admitted: sequences that got a row (and with it a whole new block table) in this step.
        preempted: sequences that lost their blocks in this step.
        block_copies: (source, destination) block ids to copy before the forward pass.
    """

    entries: list[ScheduledSequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    num_tokens: int = 0
