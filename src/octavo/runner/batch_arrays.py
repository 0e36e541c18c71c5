"""Turns a scheduled batch into the arrays that the kernels read.

Owns: the step's arrays and the mirror of every running sequence's block table. Must not know: weights, sampling, text.

Invariants:
1. ``step.block_tables[group, row]`` equals the block table of the sequence that has the row, as of this step.
2. Per-token work is done by numpy over the whole step, per-sequence work touches a few numbers.
"""

from dataclasses import dataclass, fields
from itertools import chain

import numpy as np

from octavo.kernels.step_arrays import StepArrays
from octavo.scheduler.batch import ScheduledBatch, ScheduledSequence


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

    @property
    def num_bytes(self) -> int:
        """Bytes of the step's arrays."""
        return sum(getattr(self.step, item.name).nbytes for item in fields(self.step))

    def fill(self, batch: ScheduledBatch) -> StepSizes:
        """Writes the batch's tokens, positions, slots and tables into the step's arrays."""
        step, entries, num_tokens = self.step, batch.entries, batch.num_tokens
        num_seqs = len(entries)
        self._mirror_tables(entries)
        rows = np.array([entry.sequence.row for entry in entries], np.int32)
        starts = np.array([entry.start for entry in entries], np.int32)
        counts = np.array([entry.num_tokens for entry in entries], np.int32)
        step.token_ids[:num_tokens] = _token_ids(batch)
        step.table_rows[:num_seqs] = rows
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

    def _mirror_tables(self, entries: list[ScheduledSequence]) -> None:
        """Writes what changed in the tables of the step's sequences; in most steps of most sequences nothing did."""
        for entry in entries:
            cache = entry.sequence.cache
            assert cache is not None, "a scheduled sequence holds a cache"
            if cache.num_mirrored_blocks != len(cache.tables[0].block_ids):
                changed = cache.drain_changes()
                rows = self.step.block_tables[:, entry.sequence.row, changed.start : changed.stop]
                rows[:] = [table.block_ids[changed.start :] for table in cache.tables]


def _token_ids(batch: ScheduledBatch) -> list[int]:
    """Returns the tokens of all entries, one after the other."""
    entries = batch.entries
    if batch.num_tokens == len(entries):
        return [entry.sequence.token_ids[entry.start] for entry in entries]
    pieces = (entry.sequence.token_ids[entry.start : entry.start + entry.num_tokens] for entry in entries)
    return list(chain.from_iterable(pieces))
