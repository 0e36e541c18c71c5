"""The memory that KV blocks live in.

Owns: one anonymous mapping, committed page by page as blocks are first written, and its return to the system. Must not know: who
uses which block.

Invariants:
1. The mapping never moves; block ``i`` is bytes ``i * block_bytes .. (i + 1) * block_bytes``.
2. Reserving costs no physical memory; a released block reads as zeros.
"""

import mmap
from collections.abc import Iterable

import numpy as np

from octavo.kernels.kv_layout import KVLayer, KVLayout


class KVStorage:
    """Storage of ``num_blocks`` blocks."""

    def __init__(self, layout: KVLayout, num_blocks: int):
        self.layout = layout
        self.num_blocks = num_blocks
        self._mapping = mmap.mmap(-1, num_blocks * layout.block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.blocks = np.frombuffer(self._mapping, np.uint8).reshape(num_blocks, layout.block_bytes)

    def layer(self, index: int) -> KVLayer:
        """Returns the view of the layer at ``index`` of its group."""
        return KVLayer(self.blocks, self.layout, index)

    def release(self, block_ids: Iterable[int]) -> None:
        """Gives the whole pages of these blocks back to the system."""
        for first, last in _runs(sorted(block_ids)):
            begin = -(-first * self.layout.block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (last + 1) * self.layout.block_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            if end > begin:
                self._mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _runs(sorted_ids: list[int]) -> Iterable[tuple[int, int]]:
    """Yields (first, last) of each run of consecutive ids."""
    first = 0
    for index in range(1, len(sorted_ids) + 1):
        if index == len(sorted_ids) or sorted_ids[index] != sorted_ids[index - 1] + 1:
            yield sorted_ids[first], sorted_ids[index - 1]
            first = index
