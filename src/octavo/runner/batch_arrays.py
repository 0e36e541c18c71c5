"""Turns a scheduled batch into the arrays that the kernels read.

Owns: the step's arrays and the mirror of every running sequence's block table. Must not know: weights, sampling, text.

Invariants:
1. ``step.block_tables[group, row]`` equals the block table of the sequence that has the row, as of this step.
2. Per-token work is done by numpy over the whole step, per-sequence work touches a few numbers.
"""

from dataclasses import dataclass, fields

import numpy as np

from octavo.kernels.step_arrays import StepArrays
from octavo.memory.sequence_cache import SequenceCache
from octavo.scheduler.batch import ScheduledBatch


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
        step, num_seqs, num_tokens = self.step, len(batch.entries), batch.num_tokens
        token_ids, *columns = self._columns(batch)
        rows, starts, counts = np.array(columns, np.int32)
        step.token_ids[:num_tokens] = token_ids
        step.table_rows[:num_seqs] = rows
        np.add(starts, counts, out=step.context_lens[:num_seqs])
        np.cumsum(counts, out=step.cu_seqlens_q[1 : num_seqs + 1])
        self._fill_slots(num_tokens, starts, counts, rows)
        return StepSizes(num_tokens, num_seqs)

    def _columns(self, batch: ScheduledBatch) -> tuple[list[int], list[int], list[int], list[int]]:
        """Returns the tokens of all entries, and the row, the start and the number of tokens of each.

        One pass over the sequences, which also brings the mirror up to date.
        """
        token_ids: list[int] = []
        rows: list[int] = []
        starts: list[int] = []
        counts: list[int] = []
        for entry in batch.entries:
            sequence, start, count = entry.sequence, entry.start, entry.num_tokens
            cache, row = sequence.cache, sequence.row
            assert cache is not None, "a scheduled sequence holds a cache"
            if cache.num_mirrored_blocks != len(cache.tables[0].block_ids):
                self._mirror(cache, row)
            if count == 1:
                token_ids.append(sequence.token_ids[start])
            else:
                token_ids += sequence.token_ids[start : start + count]
            rows.append(row)
            starts.append(start)
            counts.append(count)
        return token_ids, rows, starts, counts

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

    def _mirror(self, cache: SequenceCache, row: int) -> None:
        """Writes what changed in a sequence's tables; in most steps of most sequences nothing did."""
        changed = cache.drain_changes()
        self.step.block_tables[:, row, changed.start : changed.stop] = [table.block_ids[changed.start :] for table in cache.tables]
