"""What one step computes, as plain data.

Owns: the record that goes from the scheduler to the runner. Must not know: arrays.

Invariants:
1. A sequence occurs at most once; each has at least one token.
2. ``num_tokens`` is the sum of ``counts`` and at most the token budget.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.scheduler.sequence import Sequence


class ScheduledSequence(NamedTuple):
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
    """One step. What it says of each sequence is kept in columns, in the order in which tokens were handed out.

    Attributes:
        sequences, starts, counts, are_last_chunks: the columns; see `ScheduledSequence`.
        admitted: sequences that got a row (and with it a whole new block table) in this step.
        changed_tables: running sequences whose block tables changed since the step before, the admitted ones among them.
        preempted: sequences that lost their blocks in this step.
        block_copies: (source, destination) block ids to copy before the forward pass.
    """

    sequences: list[Sequence] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    are_last_chunks: list[bool] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    changed_tables: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, sequence: Sequence, start: int, num_tokens: int) -> None:
        """Hands out tokens to a sequence."""
        self.sequences.append(sequence)
        self.starts.append(start)
        self.counts.append(num_tokens)
        self.are_last_chunks.append(start + num_tokens == sequence.num_tokens)
        self.num_tokens += num_tokens

    def add_decodes(self, sequences: list[Sequence], starts: list[int]) -> None:
        """Hands out one token to each of the sequences, which is the only one that it wants."""
        self.sequences += sequences
        self.starts += starts
        self.counts += [1] * len(sequences)
        self.are_last_chunks += [True] * len(sequences)
        self.num_tokens += len(sequences)

    @property
    def entries(self) -> list[ScheduledSequence]:
        """The columns row by row, for those who look at each sequence on its own."""
        return list(map(ScheduledSequence, self.sequences, self.starts, self.counts, self.are_last_chunks))
