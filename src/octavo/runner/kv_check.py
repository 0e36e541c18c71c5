"""Checks that K and V in memory are what was computed.

Owns: checksums of full blocks, and the poison in free ones. Must not know: why a block is held or freed.

A block is summed up when it is full and compared when it is read. A block that becomes free is filled with bytes that are no
number in any float format, so that whatever reads it shows; if they have changed when the block is handed out, somebody wrote to
memory that was not his.

Invariants:
1. A block has a checksum only while it is full and not free, and is poisoned only while it is free.
2. Nothing that a step may read or write is changed.
"""

from collections.abc import Callable, Iterable, Iterator
from random import Random

import numpy as np

from octavo.errors import IntegrityError
from octavo.scheduler.batch import ScheduledBatch, ScheduledSequence

POISON_WORD = np.uint64(2**64 - 1)  # NaN as fp32, fp16 and bf16, and as the scales of int8
SAMPLED_STEPS = 8  # `sample` compares one block in so many steps: reading it takes about a fiftieth of a step of one sequence
SAMPLED_HITS = 2  # and so many of a sequence that starts on blocks of others

Held = tuple[int, int, int]  # block id, layer group, index in the sequence


class KVCheck:
    """Watches one storage.

    Args:
        blocks: uint8 ``[num_blocks, block_bytes]``.
        drain_freed: returns the ids of the blocks that became free since its last call, in any order.
        checks_all: compare every block that a step reads, not only some.
    """

    def __init__(self, blocks: np.ndarray, drain_freed: Callable[[], Iterable[int]], block_size: int, *, checks_all: bool):
        self._words = blocks.view(np.uint64)
        self._drain_freed = drain_freed
        self._block_size = block_size
        self._checks_all = checks_all
        self._checksums: dict[int, int] = {}
        self._poisoned: set[int] = set()
        self._to_poison: set[int] = set()
        self._num_steps = 0
        self._random = Random(0)
        self.num_compared = 0

    def before_copies(self, copies: Iterable[tuple[int, int]]) -> None:
        """Poisons what was freed, but not what the copies of this step still read; call it before they run."""
        self._note_freed()
        if self._to_poison:
            self._poison(self._to_poison - {source for source, _ in copies})
        for _, destination in copies:
            self._check_poison(destination)

    def before_forward(self, batch: ScheduledBatch) -> None:
        """Compares blocks that the step will read, and looks at those that it will be the first to write to."""
        if self._to_poison:
            self._poison(set(self._to_poison))
        self._num_steps += 1
        for block_id, group, index, entry in self._chosen(batch):
            self._compare(block_id, f"layer group {group}, block {index} of sequence {entry.sequence.sequence_id}")
        for entry in batch.entries:
            if not self._checks_all and entry.num_tokens == 1 and entry.start % self._block_size:
                continue  # goes on in a block of its own; saying so again in every step is not worth the time
            for block_id, _, _ in self._written(entry):
                if block_id in self._checksums:
                    raise IntegrityError(f"KV block {block_id} is full and in use, and a step is about to write to it")
                self._check_poison(block_id)

    def after_forward(self, batch: ScheduledBatch) -> None:
        """Sums up the blocks that the step filled."""
        for entry in batch.entries:
            num_before, num_full = entry.start // self._block_size, (entry.start + entry.num_tokens) // self._block_size
            if num_full > num_before:
                for block_id, _, _ in _held(entry, num_before, num_full):
                    self._checksums[block_id] = self._checksum(block_id)

    def forget(self, block_ids: Iterable[int]) -> None:
        """Takes notice that blocks lose their poison otherwise than by a step: their pages go, or they are filled from outside."""
        self._note_freed()
        self._to_poison.difference_update(block_ids)
        self._poisoned.difference_update(block_ids)

    def _note_freed(self) -> None:
        for block_id in self._drain_freed():
            self._checksums.pop(block_id, None)
            self._to_poison.add(block_id)

    def _poison(self, block_ids: set[int]) -> None:
        for block_id in block_ids:
            self._words[block_id] = POISON_WORD
        self._poisoned |= block_ids
        self._to_poison -= block_ids

    def _chosen(self, batch: ScheduledBatch) -> Iterator[tuple[int, int, int, ScheduledSequence]]:
        """Yields the full blocks to compare, each with its layer group, its index and who reads it."""
        if self._checks_all:
            yield from ((*held, entry) for entry in batch.entries for held in self._read(entry))
            return
        entries = [(entry, SAMPLED_HITS) for entry in batch.entries if entry.sequence in batch.admitted] if batch.admitted else []
        if self._num_steps % SAMPLED_STEPS == 0:
            entries.append((self._random.choice(batch.entries), 1))
        for entry, count in entries:
            full = list(self._read(entry))
            yield from ((*held, entry) for held in self._random.sample(full, min(count, len(full))))

    def _read(self, entry: ScheduledSequence) -> Iterator[Held]:
        """Yields the full blocks that an entry's queries read."""
        return _held(entry, 0, entry.start // self._block_size)

    def _written(self, entry: ScheduledSequence) -> Iterator[Held]:
        return _held(entry, entry.start // self._block_size, -(-(entry.start + entry.num_tokens) // self._block_size))

    def _compare(self, block_id: int, place: str) -> None:
        self.num_compared += 1
        checksum = self._checksum(block_id)
        if self._checksums.setdefault(block_id, checksum) != checksum:  # unknown: it was read from a disk, which has its own
            raise IntegrityError(
                f"KV block {block_id} ({place}) has changed since it was filled",
                hint="the machine's memory or a kernel is at fault; what was computed since cannot be trusted",
            )

    def _check_poison(self, block_id: int) -> None:
        if block_id not in self._poisoned:
            return
        self._poisoned.remove(block_id)
        if (self._words[block_id] != POISON_WORD).any():
            raise IntegrityError(
                f"KV block {block_id} was written to while it was free",
                hint="the machine's memory or a kernel is at fault; what was computed since cannot be trusted",
            )

    def _checksum(self, block_id: int) -> int:
        return int(np.add.reduce(self._words[block_id]))  # modulo 2**64


def _held(entry: ScheduledSequence, first: int, end: int) -> Iterator[Held]:
    """Yields the blocks of an entry's tables with an index from ``first`` to ``end``, as far as they are in the window."""
    assert entry.sequence.cache is not None, "a scheduled sequence holds a cache"
    for group, table in enumerate(entry.sequence.cache.tables):
        for index in range(max(first, table.first_held), end):
            yield table.block_ids[index], group, index
