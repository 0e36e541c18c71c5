"""The thread that reads and writes blocks while steps are computed.

Owns: its queues and the buffers of blocks that wait to be written. Must not know: what is stored where, or why.

Invariants:
1. Nobody waits for the thread: a block that finds no buffer is refused, and results are fetched when they are there.
2. Reads go before writes. So what is in a slot when its read is asked for is there when it is read: a write to the slot that
   was asked for later comes later.
3. A job ends in `finished` exactly once, with its error if it had one.
"""

import mmap
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.tiers.record import PAGE_BYTES, RecordHeader, record_bytes

STAGING_BYTES = 64 * 2**20  # of blocks that wait to be written; more would only put off the moment when the disk is too slow
MIN_STAGED_BLOCKS = 4


class RecordFile(Protocol):
    """Where records are kept: `octavo.tiers.block_file.BlockFile`."""

    def write(self, slot: int, header: RecordHeader, record: memoryview) -> None: ...

    def read(self, slot: int, into: memoryview) -> RecordHeader | None: ...

    def clear(self) -> None: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class Job:
    """One transfer.

    Attributes:
        is_good: whether the block arrived as it was written; only for reads.
        error: what the system said when it failed.
        seconds: how long the transfer took.
    """

    slot: int
    key: bytes
    group: int
    token_ids: tuple[int, ...]
    is_good: bool = False
    error: OSError | None = None
    seconds: float = 0.0


@dataclass(eq=False)
class WriteJob(Job):
    """A block to be written, which lies in buffer ``buffer``."""

    buffer: int = -1


@dataclass(eq=False)
class ReadJob(Job):
    """A block to be read into block ``block_id`` of the pool."""

    block_id: int = -1


class BlockIO:
    """Transfers between a pool's storage and a file.

    Args:
        blocks: uint8 ``[num_blocks, block_bytes]``, the pool's storage.
        first_stamp: of the first record to be written.
    """

    def __init__(self, file: RecordFile, blocks: np.ndarray, *, first_stamp: int, staging_bytes: int = STAGING_BYTES):
        self._file = file
        self._blocks = blocks
        self._stamp = first_stamp
        self._slot_bytes = record_bytes(blocks.shape[1])
        num_buffers = max(MIN_STAGED_BLOCKS, staging_bytes // self._slot_bytes)
        self._staging = memoryview(mmap.mmap(-1, num_buffers * self._slot_bytes))  # pages are committed when first used
        self._changed = threading.Condition()
        self._reads: deque[ReadJob] = deque()  # guarded by _changed, as all that follow
        self._writes: deque[WriteJob] = deque()
        self._free_buffers = list(range(num_buffers - 1, -1, -1))
        self._finished: deque[Job] = deque()
        self._orders: deque[Callable[[], None]] = deque()
        self._is_closing = False
        self._is_busy = False
        self._thread = threading.Thread(target=self._run, name="octavo-disk", daemon=True)
        self._thread.start()

    @property
    def num_queued_writes(self) -> int:
        """Blocks that wait to be written."""
        return len(self._writes)

    @property
    def num_queued_reads(self) -> int:
        """Blocks that wait to be read."""
        return len(self._reads)

    @property
    def has_room(self) -> bool:
        """Whether a block could be staged now."""
        return bool(self._free_buffers)

    @property
    def is_alive(self) -> bool:
        """False once the thread has ended."""
        return self._thread.is_alive()

    def write(self, job: WriteJob, block_id: int) -> None:
        """Copies a block of the pool into a buffer and queues it; there must be room."""
        with self._changed:
            job.buffer = self._free_buffers.pop()
        self._staged_block(job)[:] = self._blocks[block_id].data
        with self._changed:
            self._writes.append(job)
            self._changed.notify_all()

    def read(self, jobs: list[ReadJob]) -> None:
        """Queues reads."""
        with self._changed:
            self._reads.extend(jobs)
            self._changed.notify_all()

    def clear_file(self) -> None:
        """Drops the writes that wait, and empties the file."""
        with self._changed:
            self._finished.extend(self._writes)
            self._free_buffers.extend(job.buffer for job in self._writes)
            self._writes.clear()
            self._orders.append(self._file.clear)
            self._changed.notify_all()

    def finished(self) -> list[Job]:
        """Returns the jobs that ended since the last call."""
        with self._changed:
            jobs = list(self._finished)
            self._finished.clear()
        return jobs

    def wait(self, seconds: float) -> None:
        """Waits until a job has ended that was not fetched yet, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished or not self.is_alive, seconds)

    def close(self, seconds: float) -> None:
        """Does what is queued, for at most so long, then ends the thread and closes the file."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: self._is_idle() or not self.is_alive, seconds)
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(max(0.1, deadline - time.monotonic()))
        if not self.is_alive:
            self._file.close()

    # ---- on the thread

    def _is_idle(self) -> bool:
        return not (self._reads or self._writes or self._orders or self._is_busy)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if isinstance(job, Job):
                self._transfer(job)
            else:
                job()
            with self._changed:
                self._is_busy = False
                if isinstance(job, WriteJob):
                    self._free_buffers.append(job.buffer)
                if isinstance(job, Job):
                    self._finished.append(job)
                self._changed.notify_all()

    def _next(self) -> Job | Callable[[], None] | None:
        """Waits for the next thing to do; None when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or not self._is_idle())
            if self._is_closing:
                return None
            self._is_busy = True
            queue = self._orders or self._reads or self._writes
            return queue.popleft()

    def _transfer(self, job: Job) -> None:
        started = time.perf_counter()
        try:
            if isinstance(job, WriteJob):
                self._write(job)
            elif isinstance(job, ReadJob):
                self._read(job)
        except OSError as error:
            job.error = error
        job.seconds = time.perf_counter() - started

    def _record(self, job: WriteJob) -> memoryview:
        return self._staging[job.buffer * self._slot_bytes : (job.buffer + 1) * self._slot_bytes]

    def _staged_block(self, job: WriteJob) -> memoryview:
        return self._record(job)[PAGE_BYTES : PAGE_BYTES + self._blocks.shape[1]]

    def _write(self, job: WriteJob) -> None:
        block = self._staged_block(job)
        header = RecordHeader.of(block, key=job.key, group=job.group, token_ids=job.token_ids, stamp=self._stamp)
        self._stamp += 1
        self._file.write(job.slot, header, self._record(job))

    def _read(self, job: ReadJob) -> None:
        header = self._file.read(job.slot, self._blocks[job.block_id].data)
        found = None if header is None else (header.key, header.group, header.token_ids)
        job.is_good = found == (job.key, job.group, job.token_ids)
