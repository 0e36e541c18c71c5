"""A file of records of one size, each in a slot of its own.

Owns: the file, and how bytes go to and from it without staying in the page cache. Must not know: which block belongs where.

Transfers bypass the page cache (``O_DIRECT``) where the file system can; elsewhere the cache is told to drop what passed through.

Invariants:
1. Slot ``i`` is bytes ``i * slot_bytes .. (i + 1) * slot_bytes``; the file never grows beyond its last slot.
2. One process at a time has the file open.
3. A slot that was torn, cut off or changed reads as None; the others are not affected.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from octavo.tiers.record import PAGE_BYTES, RecordHeader, decode_header, encode_header, padded, record_bytes

NUM_SCAN_THREADS = 8  # reads in flight while the headers are looked through
WRITES_PER_ADVICE = 64  # without direct transfers: writes between two reminders to the page cache


class BlockFile:
    """Records of ``block_bytes`` in a file that is made if there is none.

    Args:
        fingerprint: 32 bytes; records of any other are as good as empty.

    Raises:
        OSError: the file cannot be opened for writing, or another process uses it.
    """

    def __init__(self, path: Path, *, block_bytes: int, num_slots: int, fingerprint: bytes):
        self.block_bytes = block_bytes
        self.slot_bytes = record_bytes(block_bytes)
        self.num_slots = num_slots
        self._fingerprint = fingerprint
        self._descriptor, self.is_direct = _open(path)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._descriptor).st_size > num_slots * self.slot_bytes:
                os.ftruncate(self._descriptor, num_slots * self.slot_bytes)
        except OSError:
            os.close(self._descriptor)
            raise
        self._record = mmap.mmap(-1, self.slot_bytes)  # page-aligned, for the thread that reads blocks
        self._num_unadvised = 0

    def close(self) -> None:
        """Closes the file and lets others have it."""
        os.close(self._descriptor)

    def scan(self) -> Iterator[tuple[int, RecordHeader]]:
        """Yields every slot whose header is good. The blocks themselves are checked when they are read."""
        num_slots = min(self.num_slots, os.fstat(self._descriptor).st_size // self.slot_bytes)
        with ThreadPoolExecutor(NUM_SCAN_THREADS) as threads:
            for slot, header in enumerate(threads.map(self._read_header, range(num_slots))):
                if header is not None and header.payload_bytes == self.block_bytes:
                    yield slot, header

    def write(self, slot: int, header: RecordHeader, record: memoryview) -> None:
        """Writes a record whose block lies in ``record`` from the second page on; the header's page is filled in."""
        record[:PAGE_BYTES] = encode_header(header, self._fingerprint)
        num_written = os.pwritev(self._descriptor, [record], slot * self.slot_bytes)
        if num_written != self.slot_bytes:
            raise OSError(f"only {num_written} of {self.slot_bytes} bytes were written")
        self._num_unadvised += 1
        if not self.is_direct and self._num_unadvised >= WRITES_PER_ADVICE:
            self._num_unadvised = 0
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, slot: int, into: memoryview) -> RecordHeader | None:
        """Reads a record's block into ``into`` and returns its header; None if the record is not good."""
        goes_straight = padded(self.block_bytes) == self.block_bytes
        record = memoryview(self._record)
        buffers = [record[:PAGE_BYTES], into] if goes_straight else [record]
        num_read = os.preadv(self._descriptor, buffers, slot * self.slot_bytes)
        if not self.is_direct:
            os.posix_fadvise(self._descriptor, slot * self.slot_bytes, self.slot_bytes, os.POSIX_FADV_DONTNEED)
        if num_read != self.slot_bytes:
            return None
        if not goes_straight:
            into[:] = record[PAGE_BYTES : PAGE_BYTES + self.block_bytes]
        header = decode_header(self._record[:PAGE_BYTES], self._fingerprint)
        return header if header is not None and header.describes(into) else None

    def clear(self) -> None:
        """Empties the file."""
        os.ftruncate(self._descriptor, 0)

    def _read_header(self, slot: int) -> RecordHeader | None:
        with mmap.mmap(-1, PAGE_BYTES) as page:
            num_read = os.preadv(self._descriptor, [page], slot * self.slot_bytes)
            return decode_header(page[:], self._fingerprint) if num_read == PAGE_BYTES else None


def _open(path: Path) -> tuple[int, bool]:
    """Returns a descriptor and whether its transfers are direct."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    if hasattr(os, "O_DIRECT"):
        with suppress(OSError):  # this file system cannot
            return os.open(path, flags | os.O_DIRECT, 0o600), True
    return os.open(path, flags, 0o600), False
