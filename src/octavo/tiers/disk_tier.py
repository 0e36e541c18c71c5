"""The tier below memory: evicted blocks go to disk and come back.

Owns: what is written, what is read for whom, and when the tier is given up. Must not know: requests, text, arrays of a step.

Invariants:
1. No step waits for the disk: an evicted block is copied into a buffer or dropped, a read goes on while others are served.
2. What comes back is what was computed: name, token ids and checksum are compared for every block.
3. The first error of the disk turns the tier off, with one line in the log; requests go on without it.
4. A sequence's read is waited for once per admission, and for `READ_PATIENCE_SECONDS` at most.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from octavo.memory.content_key import next_key, node_key, root_key
from octavo.memory.kv_manager import KVManager
from octavo.memory.prefix_match import PrefixMatch
from octavo.memory.prefix_tree import PrefixNode
from octavo.memory.restore import Place, Restore
from octavo.memory.tier_index import BlockName, TierIndex
from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.sequence import Sequence
from octavo.tiers.block_io import BlockIO, ReadJob, WriteJob
from octavo.tiers.costs import TransferCosts

READ_PATIENCE_SECONDS = 30.0  # then a sequence computes what it waited for
CLOSE_SECONDS = 60.0  # for writing what is cached when the engine ends
MIN_MEASURED_TOKENS = 16  # per sequence of a step, for its time to tell what a prompt's tokens cost
logger = logging.getLogger("octavo.tiers")


@dataclass
class TierStats:
    """Counts of a disk tier; all but the first three only grow.

    Attributes:
        is_on: False once an error turned it off.
        num_stored_blocks: blocks on disk that can be found.
        num_queued_writes: blocks that wait to be written.
        num_read_tokens: tokens that sequences did not have to compute because their blocks were read.
        num_dropped_blocks: evicted blocks that were not written because the queue was full.
        num_damaged_blocks: blocks that were read and did not match their checksum or name.
        num_unwanted_reads: prefixes on disk that were computed because that was cheaper.
    """

    is_on: bool = True
    num_stored_blocks: int = 0
    num_queued_writes: int = 0
    num_read_tokens: int = 0
    num_written_bytes: int = 0
    num_read_bytes: int = 0
    num_dropped_blocks: int = 0
    num_damaged_blocks: int = 0
    num_unwanted_reads: int = 0


@dataclass(eq=False)
class _Reading:
    """A restore whose blocks come from disk.

    Attributes:
        num_known_tokens: tokens of the prefix that were in memory before.
        num_missing: reads that have not ended.
    """

    restore: Restore
    sequence: Sequence
    jobs: list[ReadJob]
    num_known_tokens: int
    num_missing: int
    started: float
    is_submitted: bool = False


class _Link(NamedTuple):
    """A block of a prefix: its content key and its tokens."""

    key: bytes
    token_ids: tuple[int, ...]


class DiskTier:
    """Blocks of one memory on one disk.

    Args:
        index: what is on disk already.
    """

    def __init__(self, kv: KVManager, io: BlockIO, index: TierIndex, costs: TransferCosts, *, block_bytes: int):
        self.costs = costs
        self._kv = kv
        self._io = io
        self._index = index
        self._block_bytes = block_bytes
        self._counts = TierStats()
        self._writing: dict[BlockName, WriteJob] = {}
        self._reading: dict[ReadJob, tuple[_Reading, Place]] = {}
        self._readings: list[_Reading] = []
        kv.watch_evictions(self._on_evict)

    # ---- blocks that leave memory

    def _on_evict(self, node: PrefixNode, group: int) -> None:
        """Writes an evicted block, unless it is on disk already or would not be read anyway."""
        if not self._counts.is_on or len(node.token_ids) < self._kv.block_size:
            return
        if self.costs.prefers_reading(1, self._kv.block_size):
            self._store(node, group)

    def _store(self, node: PrefixNode, group: int) -> None:
        name = (node_key(node), group)
        if self._index.find(name, node.token_ids) is not None:
            self._index.touch(name)
            return
        if name in self._writing:
            return
        if not self._io.has_room:
            self._counts.num_dropped_blocks += 1
            return
        slot = self._index.reserve()
        if slot is None:
            self._counts.num_dropped_blocks += 1
            return
        job = self._writing[name] = WriteJob(slot, *name, node.token_ids)
        self._io.write(job, node.block_ids[group])

    # ---- prefixes that come back

    def begin_read(self, sequence: Sequence, match: PrefixMatch) -> Restore | None:
        """Starts to read what continues a waiting sequence's prefix on disk.

        Args:
            match: what of the sequence is in memory; nothing was evicted since it was found.

        Returns:
            What the sequence waits for; None when nothing is on disk, computing is cheaper, or blocks are too few.
        """
        if not self._counts.is_on or not len(self._index):
            return None
        chain, num_whole_tokens, places = self._plan(sequence, match)
        num_tokens = num_whole_tokens - match.num_tokens
        if num_tokens <= 0:
            return None
        if not self.costs.prefers_reading(len(places) + self._io.num_queued_reads, num_tokens):
            self._counts.num_unwanted_reads += 1
            return None
        jobs = {(index, group): self._read_job((chain[index].key, group), chain[index].token_ids) for index, group in places}
        restore = self._kv.restorer.begin(sequence.token_ids[:num_whole_tokens], sequence.namespace, match.nodes, places)
        if restore is None:
            return None
        reading = _Reading(restore, sequence, list(jobs.values()), match.num_tokens, len(jobs), time.monotonic())
        for place, job in jobs.items():
            job.block_id = restore.incoming[place]
            self._reading[job] = reading, place
        self._readings.append(reading)
        return restore

    def _read_job(self, name: BlockName, token_ids: tuple[int, ...]) -> ReadJob:
        slot = self._index.find(name, token_ids)
        assert slot is not None, "a planned block is not on disk"
        self._index.touch(name)
        return ReadJob(slot, *name, token_ids)

    def _plan(self, sequence: Sequence, match: PrefixMatch) -> tuple[list[_Link], int, list[Place]]:
        """Returns the prefix's blocks, how many tokens of it memory and disk have together, and what is to be read."""
        size = self._kv.block_size
        chain = [_Link(node_key(node), node.token_ids) for node in match.nodes]
        key = chain[-1].key if chain else root_key(sequence.namespace)
        for end in range((len(chain) + 1) * size, sequence.num_tokens, size):
            own = tuple(sequence.token_ids[end - size : end])
            key = next_key(key, own)
            if not self._has_full_groups(key, own):
                break
            chain.append(_Link(key, own))

        def is_on_disk(place: Place) -> bool:
            index, group = place
            return self._index.find((chain[index].key, group), chain[index].token_ids) is not None

        return chain, *self._kv.restorer.longest(match.nodes, len(chain) * size, is_on_disk)

    def _has_full_groups(self, key: bytes, own: tuple[int, ...]) -> bool:
        return all(
            self._index.find((key, group), own) is not None for group, spec in enumerate(self._kv.groups) if spec.window is None
        )

    # ---- the engine's turns

    def submit(self, copied: Iterable[int]) -> None:
        """Lets the reads begin whose blocks are not touched by the block copies that this step still has to do.

        Args:
            copied: the sources and destinations of those copies.
        """
        busy = set(copied)
        for reading in self._readings:
            if not reading.is_submitted and busy.isdisjoint(reading.restore.incoming.values()):
                reading.is_submitted = True
                self._io.read(reading.jobs)

    def note_step(self, batch: ScheduledBatch, seconds: float) -> None:
        """Takes in how long a step took. Only steps of prompts count: tokens one by one cost more, and none of them is on disk."""
        if batch.num_tokens >= MIN_MEASURED_TOKENS * len(batch.sequences):
            self.costs.note_compute(seconds, batch.num_tokens)

    def poll(self) -> None:
        """Takes in what the disk has done; call it before a step, when no block copies are queued."""
        self.submit(())
        for job in self._io.finished():
            if job.error is not None:
                self._turn_off(job.error)
            if isinstance(job, WriteJob):
                self._end_write(job)
            elif isinstance(job, ReadJob):
                self._end_read(job)
        if self._counts.is_on and not self._io.is_alive:
            self._turn_off("its thread has ended")
        self._lose_patience()

    @property
    def is_reading(self) -> bool:
        """Whether any prefix is on its way into memory."""
        return bool(self._readings)

    def wait(self, seconds: float) -> None:
        """Waits for the disk, at most so long."""
        self._io.wait(seconds)

    def forget(self) -> None:
        """Drops everything on disk."""
        self._index.load({})
        self._writing.clear()
        self._io.clear_file()

    def stats(self) -> TierStats:
        """Returns the counts of this moment."""
        self._counts.num_stored_blocks = len(self._index)
        self._counts.num_queued_writes = self._io.num_queued_writes
        return TierStats(**vars(self._counts))

    def close(self) -> None:
        """Writes what memory still has cached, so that it serves after a restart, and ends. Takes `CLOSE_SECONDS` at most."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for node, group in self._kv.cached_nodes()[: self._index.num_slots]:
            while self._counts.is_on and not self._io.has_room and time.monotonic() < deadline:
                self._io.wait(0.1)
                self.poll()
            self._on_evict(node, group)
        self._kv.watch_evictions(None)
        self._io.close(max(1.0, deadline - time.monotonic()))

    # ---- what the disk has done

    def _end_write(self, job: WriteJob) -> None:
        name = (job.key, job.group)
        if self._writing.get(name) is not job:  # everything was forgotten meanwhile
            return
        del self._writing[name]
        if job.error is None and self._counts.is_on:
            self._index.add(name, job.token_ids, job.slot)
            self._counts.num_written_bytes += self._block_bytes

    def _end_read(self, job: ReadJob) -> None:
        reading, place = self._reading.pop(job)
        reading.num_missing -= 1
        if job.is_good:
            self._counts.num_read_bytes += self._block_bytes
            self.costs.note_read(job.seconds)
        else:
            reading.restore.failed.add(place)
            self._index.remove((job.key, job.group))
            self._counts.num_damaged_blocks += job.error is None
        if reading.num_missing == 0:
            self._finish(reading)

    def _finish(self, reading: _Reading) -> None:
        self._readings.remove(reading)
        restore = reading.restore
        num_known = self._kv.restorer.finish(restore)
        self._kv.free(restore.cache, restore.token_ids)
        num_tokens = max(0, num_known - reading.num_known_tokens)
        reading.sequence.num_disk_tokens += num_tokens
        self._counts.num_read_tokens += num_tokens

    def _lose_patience(self) -> None:
        latest = time.monotonic() - READ_PATIENCE_SECONDS
        for reading in self._readings:
            if reading.restore.is_pending and reading.started < latest:
                self._kv.restorer.give_up(reading.restore)
                self._turn_off(f"a read has taken longer than {READ_PATIENCE_SECONDS:.0f} s")

    def _turn_off(self, cause: object) -> None:
        if self._counts.is_on:
            self._counts.is_on = False
            self._index.load({})
            self._writing.clear()
            logger.error("the disk cache is turned off: %s", cause)
