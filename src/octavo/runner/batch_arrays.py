"""Turns a scheduled batch into the arrays that the kernels read.

Owns: the step's arrays and the mirror of every running sequence's block table. Must not know: weights, sampling, text.

Invariants:
1. ``step.block_tables[group, row]`` equals the block table of the sequence that has the row, as of this step.
2. Per-token work is done by numpy over the whole step, per-sequence work touches a few numbers.
"""

from dataclasses import dataclass, fields

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
        step, entries = self.step, batch.entries
        self._mirror_tables(entries)
        num_seqs, num_tokens = len(entries), batch.num_tokens
        counts = np.array([entry.num_tokens for entry in entries], np.int32)
        starts = np.array([entry.start for entry in entries], np.int32)
        rows = np.array([entry.sequence.row for entry in entries], np.int32)
        step.table_rows[:num_seqs] = rows
        step.context_lens[:num_seqs] = starts + counts
        np.cumsum(counts, out=step.cu_seqlens_q[1 : num_seqs + 1])
        self._fill_token_ids(batch)
        self._fill_slots(num_tokens, starts, counts, rows)
        return StepSizes(num_tokens, num_seqs)

    def _fill_token_ids(self, batch: ScheduledBatch) -> None:
        token_ids: list[int] = []
        for entry in batch.entries:
            known = entry.sequence.token_ids
            if entry.num_tokens == 1:
                token_ids.append(known[entry.start])
            else:
                token_ids += known[entry.start : entry.start + entry.num_tokens]
        self.step.token_ids[: batch.num_tokens] = token_ids

    def _fill_slots(self, num_tokens: int, starts: np.ndarray, counts: np.ndarray, rows: np.ndarray) -> None:
        step, size = self.step, self._block_size
        first_tokens = step.cu_seqlens_q[: len(counts)]
        positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(starts - first_tokens, counts)
        step.positions[:num_tokens] = positions
        blocks = step.block_tables[:, np.repeat(rows, counts), positions // size]
        step.slot_mapping[:, :num_tokens] = blocks.astype(np.int64) * size + positions % size

    def _mirror_tables(self, entries: list[ScheduledSequence]) -> None:
        """Writes what changed in the tables of the step's sequences; in most steps of most sequences nothing did."""
        for entry in entries:
            cache = entry.sequence.cache
            assert cache is not None, "a scheduled sequence holds a cache"
            changed = cache.drain_changes()
            if changed:
                rows = self.step.block_tables[:, entry.sequence.row, changed.start : changed.stop]
                rows[:] = [table.block_ids[changed.start :] for table in cache.tables]
