"""Turns a scheduled batch into the arrays that the kernels read.

Owns: the step's arrays and the mirror of every running sequence's block table. Must not know: weights, sampling, text.

Invariants:
1. ``step.block_tables[group, row]`` equals the block table of the sequence that has the row, as of this step.
2. Per-token work is done by numpy over the whole step; of a sequence a few numbers are touched, its tables when they change.
"""

from dataclasses import dataclass, fields
from itertools import chain

import numpy as np

from octavo.kernels.step_arrays import StepArrays
from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.sequence import Sequence


@dataclass(frozen=True)
class StepSizes:
    """How much of the step's arrays is in use."""

    num_tokens: int
    num_seqs: int


class BatchArrays:
    """Fills `StepArrays` step by step."""

    def __init__(self, step: StepArrays, block_size: int):
        self.step = step
        self._block_size = block_size
        self._sequences: list[Sequence] = []  # of the step before

    @property
    def num_bytes(self) -> int:
        """Bytes of the step's arrays."""
        return sum(getattr(self.step, item.name).nbytes for item in fields(self.step))

    def fill(self, batch: ScheduledBatch) -> StepSizes:
        """Writes the batch's tokens, positions, slots and tables into the step's arrays."""
        step, num_tokens, num_seqs = self.step, batch.num_tokens, len(batch.sequences)
        self._mirror_tables(batch.changed_tables)
        starts = np.array(batch.starts, np.int32)
        counts = np.ones(num_seqs, np.int32) if num_tokens == num_seqs else np.array(batch.counts, np.int32)
        step.token_ids[:num_tokens] = _token_ids(batch)
        rows = self._find_rows(batch)
        np.add(starts, counts, out=step.context_lens[:num_seqs])
        np.cumsum(counts, out=step.cu_seqlens_q[1 : num_seqs + 1])
        self._fill_slots(num_tokens, starts, counts, rows)
        return StepSizes(num_tokens, num_seqs)

    def _fill_slots(self, num_tokens: int, starts: np.ndarray, counts: np.ndarray, rows: np.ndarray) -> None:
        step, size = self.step, self._block_size
        positions = starts
        if num_tokens > len(counts):  # else there is one token of each, and its position is where the entry starts
            first_tokens = step.cu_seqlens_q[: len(counts)]
            positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(starts - first_tokens, counts)
            rows = np.repeat(rows, counts)
        step.positions[:num_tokens] = positions
        indices, offsets = np.divmod(positions, size)
        slots = step.slot_mapping[:, :num_tokens]
        np.multiply(step.block_tables[:, rows, indices], size, out=slots, dtype=np.int64)
        slots += offsets

    def _find_rows(self, batch: ScheduledBatch) -> np.ndarray:
        """Returns the sequences' rows, which are those of the step before if the same run on and none was started anew."""
        rows = self.step.table_rows[: len(batch.sequences)]
        if batch.admitted or batch.sequences != self._sequences:
            rows[:] = [sequence.row for sequence in batch.sequences]
            self._sequences = batch.sequences
        return rows

    def _mirror_tables(self, sequences: list[Sequence]) -> None:
        """Writes what changed in the tables of running sequences."""
        for sequence in sequences:
            assert sequence.cache is not None, "a running sequence holds a cache"
            changed = sequence.cache.drain_changes()
            rows = self.step.block_tables[:, sequence.row, changed.start : changed.stop]
            rows[:] = [table.block_ids[changed.start :] for table in sequence.cache.tables]


def _token_ids(batch: ScheduledBatch) -> list[int]:
    """Returns the tokens of all sequences, one after the other."""
    starts = zip(batch.sequences, batch.starts, strict=True)
    if batch.num_tokens == len(batch.sequences):
        return [sequence.token_ids[start] for sequence, start in starts]
    pieces = (sequence.token_ids[start : start + count] for (sequence, start), count in zip(starts, batch.counts, strict=True))
    return list(chain.from_iterable(pieces))
