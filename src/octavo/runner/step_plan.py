"""Whose next tokens a step draws.

Owns: what the steps that compute the same sequences have in common, worked out once for all of them. Must not know: arrays of the
step, logits.

Invariants:
1. A plan depends on who is computed, and whether to the end of what is known: not on the tokens. One in which a sequence starts
   choices holds for a single step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.runner.sampler import DrawPlan
from octavo.runner.sampling_request import SamplingRequest
from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.sequence import Sequence


@dataclass(frozen=True)
class PlanPart:
    """Sequences whose logits are in memory at the same time.

    Attributes:
        indices: their places in the batch.
        token_ids: their tokens; the lists grow from step to step.
        draws: what is drawn from each.
        drawn_for: the sequence of each draw.
    """

    indices: list[int]
    token_ids: list[list[int]]
    draws: DrawPlan
    drawn_for: list[Sequence]


class StepPlan:
    """The sampling side of the steps that compute the same sequences.

    Args:
        requests: the sampling side of every sequence, by sequence id.
        max_rows: most rows of logits that are in memory at the same time.

    Attributes:
        constrained: places in the batch of the sequences whose next token is limited by the tokens before it.
        readers: places of those of whose prompts more is wanted than the next token.
    """

    def __init__(self, batch: ScheduledBatch, requests: Mapping[int, SamplingRequest], max_rows: int):
        self._sequences, self._are_last_chunks = batch.sequences, batch.are_last_chunks
        self._starts_choices = any(sequence.num_choices > 1 for sequence in batch.sequences)
        self.samplings = [requests[sequence.sequence_id] for sequence in batch.sequences]
        due = [index for index, is_last in enumerate(batch.are_last_chunks) if is_last and self.samplings[index].pooling is None]
        self.constrained = [index for index in due if self.samplings[index].constraint is not None]
        self.readers = [index for index, sampling in enumerate(self.samplings) if sampling.reads_prompt]
        self.parts = [self._part(batch.sequences, due[begin : begin + max_rows]) for begin in range(0, len(due), max_rows)]

    def is_for(self, batch: ScheduledBatch) -> bool:
        """Returns whether the plan holds for another step; a sequence is equal to itself alone."""
        is_same = batch.sequences == self._sequences and batch.are_last_chunks == self._are_last_chunks
        return is_same and not self._starts_choices

    def _part(self, computed: list[Sequence], indices: list[int]) -> PlanPart:
        sequences = [computed[index] for index in indices]
        num_draws = [sequence.num_choices for sequence in sequences]
        draws = DrawPlan([self.samplings[index] for index in indices], num_draws)
        token_ids = [sequence.token_ids for sequence in sequences]
        return PlanPart(indices, token_ids, draws, [sequences[row] for row in draws.rows.tolist()])
