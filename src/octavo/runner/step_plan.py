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
from octavo.scheduler.batch import ScheduledSequence
from octavo.scheduler.sequence import Sequence


@dataclass(frozen=True)
class PlanPart:
    """Sequences whose logits are in memory at the same time.

    Attributes:
        indices: their entries' places in the batch.
        draws: what is drawn from each.
        drawn_for: the sequence of each draw.
    """

    indices: list[int]
    sequences: list[Sequence]
    draws: DrawPlan
    drawn_for: list[Sequence]


class StepPlan:
    """The sampling side of the steps that compute the same entries.

    Args:
        requests: the sampling side of every sequence, by sequence id.
        max_rows: most rows of logits that are in memory at the same time.

    Attributes:
        constrained: indices of the entries whose next token is limited by the tokens before it.
        readers: indices of the entries of whose prompts more is wanted than the next token.
    """

    def __init__(self, entries: list[ScheduledSequence], requests: Mapping[int, SamplingRequest], max_rows: int):
        self._key = _key(entries)
        self._starts_choices = any(entry.sequence.num_choices > 1 for entry in entries)
        self.samplings = [requests[entry.sequence.sequence_id] for entry in entries]
        due = [index for index, entry in enumerate(entries) if entry.is_last_chunk and self.samplings[index].pooling is None]
        self.constrained = [index for index in due if self.samplings[index].constraint is not None]
        self.readers = [index for index, sampling in enumerate(self.samplings) if sampling.reads_prompt]
        self.parts = [self._part(entries, due[begin : begin + max_rows]) for begin in range(0, len(due), max_rows)]

    def is_for(self, entries: list[ScheduledSequence]) -> bool:
        """Returns whether the plan holds for a step of these entries."""
        return not self._starts_choices and _key(entries) == self._key

    def _part(self, entries: list[ScheduledSequence], indices: list[int]) -> PlanPart:
        sequences = [entries[index].sequence for index in indices]
        num_draws = [sequence.num_choices for sequence in sequences]
        draws = DrawPlan([self.samplings[index] for index in indices], num_draws)
        return PlanPart(indices, sequences, draws, [sequences[row] for row in draws.rows.tolist()])


def _key(entries: list[ScheduledSequence]) -> tuple[list[Sequence], list[bool]]:
    """Returns all that a plan depends on; a sequence is equal to itself alone."""
    return [entry.sequence for entry in entries], [entry.is_last_chunk for entry in entries]
