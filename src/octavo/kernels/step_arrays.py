"""The arrays that describe one step to the kernels.

Owns: their names, shapes and dtypes. Must not know: who fills them (`octavo.runner`) or why.

Invariants:
1. The arrays are allocated once with room for the largest step; a step fills a prefix of each.
2. `cu_seqlens_q` starts at 0 and does not fall; its last entry is the number of tokens of the step.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StepArrays:
    """One step's arrays (or prefixes of them).

    Attributes:
        token_ids: int32 ``[T]``.
        positions: int32 ``[T]``, position of each token in its sequence.
        slot_mapping: int64 ``[num_groups, T]``; −1 = do not write.
        block_tables: int32 ``[num_groups, num_rows, max_blocks_per_seq]``; entries that no query can see may hold anything.
        table_rows: int32 ``[S]``: which row of ``block_tables`` belongs to sequence ``s`` of this step.
        context_lens: int32 ``[S]``.
        cu_seqlens_q: int32 ``[S + 1]``.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slot_mapping: np.ndarray
    block_tables: np.ndarray
    table_rows: np.ndarray
    context_lens: np.ndarray
    cu_seqlens_q: np.ndarray

    @staticmethod
    def allocate(*, max_tokens: int, max_seqs: int, num_groups: int, max_blocks_per_seq: int) -> "StepArrays":
        """Returns arrays with room for ``max_tokens`` tokens of ``max_seqs`` sequences: zeros, and −1 for slots and blocks."""
        return StepArrays(
            token_ids=np.zeros(max_tokens, np.int32),
            positions=np.zeros(max_tokens, np.int32),
            slot_mapping=np.full((num_groups, max_tokens), -1, np.int64),
            block_tables=np.full((num_groups, max_seqs, max_blocks_per_seq), -1, np.int32),
            table_rows=np.zeros(max_seqs, np.int32),
            context_lens=np.zeros(max_seqs, np.int32),
            cu_seqlens_q=np.zeros(max_seqs + 1, np.int32),
        )

    @staticmethod
    def bytes_of(*, max_tokens: int, max_seqs: int, num_groups: int, max_blocks_per_seq: int) -> int:
        """Returns the bytes that `allocate` takes."""
        per_token = 4 + 4 + 8 * num_groups
        return max_tokens * per_token + max_seqs * (4 * num_groups * max_blocks_per_seq + 12) + 4

    def first_rows(self, num_tokens: int, num_seqs: int) -> "StepArrays":
        """Returns views of the first ``num_tokens`` tokens and ``num_seqs`` sequences; the block tables stay whole."""
        return StepArrays(
            token_ids=self.token_ids[:num_tokens],
            positions=self.positions[:num_tokens],
            slot_mapping=self.slot_mapping[:, :num_tokens],
            block_tables=self.block_tables,
            table_rows=self.table_rows[:num_seqs],
            context_lens=self.context_lens[:num_seqs],
            cu_seqlens_q=self.cu_seqlens_q[: num_seqs + 1],
        )
