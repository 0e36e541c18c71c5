"""One conversation's KV in one file.

Owns: the file's form, its checks, and how it is written so that a crash leaves the old file or the new one. Must not know: whose
conversation it is, or how blocks get into memory.

    "OCTAVOSN", format version, length of the description
    the description: JSON with the fingerprint's fields by name, the namespace, all token ids, the block size and bytes, and the
    place (index in the conversation, layer group) of every record
    SHA-256 of all of this; zeros up to a page
    one record (`octavo.tiers.record`) per place

Invariants:
1. A file under its final name was written to the end once; what happened to it since is found out block by block.
2. A file of another format version, model or engine is refused with the name of the field that differs.
"""

import json
import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from octavo.errors import SnapshotError
from octavo.memory.restore import Place
from octavo.models.cache_directory import replacement
from octavo.tiers.fingerprint import Fingerprint
from octavo.tiers.record import PAGE_BYTES, RecordHeader, decode_header, encode_header, padded, record_bytes

MAGIC = b"OCTAVOSN"
FORMAT_VERSION = 1
MAX_DESCRIPTION_BYTES = 2**28
_PREAMBLE = struct.Struct("<8sIQ")


@dataclass(frozen=True)
class SessionDescription:
    """What a session's file says of itself.

    Attributes:
        fields: of the fingerprint.
        namespace: of the conversation, as text.
        places: of the records, in their order.
        saved_at: seconds since 1970.
        data_offset: where the first record begins.
    """

    fields: Mapping[str, str]
    namespace: str
    token_ids: list[int]
    block_size: int
    block_bytes: int
    places: list[Place]
    saved_at: float
    data_offset: int

    def tokens_of(self, index: int) -> tuple[int, ...]:
        """Returns the token ids of a block."""
        return tuple(self.token_ids[index * self.block_size : (index + 1) * self.block_size])


def write_session(
    path: Path,
    fingerprint: Fingerprint,
    *,
    namespace: str,
    token_ids: Sequence[int],
    block_size: int,
    blocks: Mapping[Place, memoryview],
) -> int:
    """Writes a session's file in one go: under another name first, then, when it is on the disk, under its own.

    Args:
        blocks: the bytes of every block by place; at least one.

    Returns:
        The file's length in bytes.

    Raises:
        OSError: the disk does not let us; then nothing is left behind, and an older file is as it was.
    """
    block_bytes = len(next(iter(blocks.values())))
    description = {
        "fields": dict(fingerprint.fields),
        "namespace": namespace,
        "token_ids": list(token_ids),
        "block_size": block_size,
        "block_bytes": block_bytes,
        "places": list(blocks),
        "saved_at": time.time(),
    }
    digest = fingerprint.digest
    with replacement(path) as file:
        file.write(_encode_description(description))
        for (index, group), block in blocks.items():
            own = tuple(token_ids[index * block_size : (index + 1) * block_size])
            _write_record(file, group, own, block, digest)
        file.flush()
        os.fsync(file.fileno())
        num_bytes = file.tell()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    _sync_directory(path.parent)
    return num_bytes


def read_description(path: Path) -> SessionDescription:
    """Returns what a session's file says of itself; reads no block.

    Raises:
        SnapshotError: there is no such file, or what it says of itself is damaged.
    """
    with _open(path) as file:
        return _read_description(file, path)


class SessionFile:
    """A session's file, opened to be loaded.

    Attributes:
        description: what it says of itself.
        num_bytes: its length.

    Raises:
        SnapshotError: there is no such file, its description is damaged, or a field of the fingerprint differs.
    """

    def __init__(self, path: Path, fingerprint: Fingerprint):
        self._digest = fingerprint.digest
        self._file = _open(path)
        try:
            self.description = _read_description(self._file, path)
            _check_fields(path, self.description.fields, fingerprint.fields)
        except BaseException:
            self._file.close()
            raise
        self.num_bytes = os.fstat(self._file.fileno()).st_size
        self._order = {place: number for number, place in enumerate(self.description.places)}

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def read(self, place: Place, into: memoryview) -> bool:
        """Reads a block into ``into``; False if it is not there or not what was written."""
        number, block_bytes = self._order.get(place), self.description.block_bytes
        if number is None or len(into) != block_bytes:
            return False
        offset = self.description.data_offset + number * record_bytes(block_bytes)
        try:
            page = os.pread(self._file.fileno(), PAGE_BYTES, offset)
            num_read = os.preadv(self._file.fileno(), [into], offset + PAGE_BYTES)
            os.posix_fadvise(self._file.fileno(), offset, record_bytes(block_bytes), os.POSIX_FADV_DONTNEED)
        except OSError:  # as good as damaged
            return False
        header = decode_header(page, self._digest)
        if header is None or num_read != block_bytes or not header.describes(into):
            return False
        return (header.group, header.token_ids) == (place[1], self.description.tokens_of(place[0]))


def _encode_description(description: Mapping[str, Any]) -> bytes:
    text = json.dumps(description, separators=(",", ":")).encode()
    whole = _PREAMBLE.pack(MAGIC, FORMAT_VERSION, len(text)) + text
    whole += sha256(whole).digest()
    return whole.ljust(padded(len(whole)), b"\0")


def _write_record(file: BinaryIO, group: int, token_ids: tuple[int, ...], block: memoryview, fingerprint: bytes) -> None:
    header = RecordHeader.of(block, key=bytes(32), group=group, token_ids=token_ids, stamp=0)
    file.write(encode_header(header, fingerprint))
    file.write(block)
    file.write(bytes(padded(len(block)) - len(block)))


def _open(path: Path) -> BinaryIO:
    try:
        return open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")
    except OSError as cause:
        raise SnapshotError(f"the session {path.name!r} cannot be opened: {cause.strerror}") from cause


def _read_description(file: BinaryIO, path: Path) -> SessionDescription:
    damaged = SnapshotError(f"{path.name!r} is not a session, or what it says of itself is damaged", hint="save the session again")
    preamble = file.read(_PREAMBLE.size)
    if len(preamble) < _PREAMBLE.size or not preamble.startswith(MAGIC):
        raise damaged
    _, version, length = _PREAMBLE.unpack(preamble)
    text = file.read(length) if length <= MAX_DESCRIPTION_BYTES else b""
    is_whole = sha256(preamble + text).digest() == file.read(32)
    if version != FORMAT_VERSION:
        raise SnapshotError(
            f"the session {path.name!r} has format_version {version}; this engine reads {FORMAT_VERSION}",
            hint="save the session again",
        )
    if not is_whole:
        raise damaged
    values = json.loads(text)
    fields = values.pop("fields")
    values["places"] = [(index, group) for index, group in values["places"]]
    return SessionDescription(fields=fields, data_offset=padded(_PREAMBLE.size + length + 32), **values)


def _check_fields(path: Path, saved: Mapping[str, str], ours: Mapping[str, str]) -> None:
    for name in (*ours, *(name for name in saved if name not in ours)):
        if saved.get(name) != ours.get(name):
            raise SnapshotError(
                f"the session {path.name!r} was saved with {name}={saved.get(name)!r}; this engine has {ours.get(name)!r}",
                hint=f"load it into an engine of the same {name}, or save it again",
            )


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
