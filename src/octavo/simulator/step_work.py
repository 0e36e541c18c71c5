"""What one step computes and reads, in the few amounts that its time depends on.

Owns: the amounts, and how a batch is counted. Must not know: how long anything takes.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from octavo.scheduler.batch import ScheduledBatch


class StepWork(NamedTuple):
    """The amounts of one step.

    Attributes:
        steps: 1: what every step does, whatever is in it; above all it reads the weights.
        tokens: rows of the layers' matrix products.
        answer_tokens: rows of the output head, and tokens sampled.
        read_slots: (token, layer) pairs whose K/V sequences read that compute one token.
        attended_pairs: (query, key, layer) triples of sequences that compute several.
    """

    steps: int
    tokens: int
    answer_tokens: int
    read_slots: float
    attended_pairs: float


class WorkCounter:
    """Counts the work of steps of one model.

    Args:
        windows: per layer, the sliding window in tokens, or None for full attention.
    """

    def __init__(self, windows: Sequence[int | None]):
        self._layers = tuple(Counter(windows).items())  # (window, layers that have it)

    def count(self, batch: ScheduledBatch) -> StepWork:
        """Returns the work of a step. A piece of a prompt counts as if each of its queries saw what its middle one does."""
        read_slots = attended_pairs = 0.0
        for start, num_tokens in zip(batch.starts, batch.counts, strict=True):
            context = start + (num_tokens + 1) / 2
            seen = sum(count * (context if window is None else min(context, window)) for window, count in self._layers)
            if num_tokens == 1:
                read_slots += seen
            else:
                attended_pairs += num_tokens * seen
        return StepWork(1, batch.num_tokens, sum(batch.are_last_chunks), read_slots, attended_pairs)
