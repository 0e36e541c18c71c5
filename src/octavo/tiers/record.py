"""One KV block as it lies in a file: a header of one page, then the block's bytes.

Owns: the header's form and both checksums. Must not know: where in a file a record lies.

    magic, version, layer group, number of tokens, bytes of the block, stamp
    fingerprint of the model [32]
    content key [32]
    SHA-256 of the block [32]
    the block's token ids, uint32 each
    SHA-256 of all of this [32]
    zeros up to a page

Invariants:
1. A header that does not come out of `encode_header` whole is None to `decode_header`, whatever its bytes.
2. A record is good only if header and block match their checksums, and the header names the model that asks.
"""

import struct
from array import array
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

PAGE_BYTES = 4096  # what direct transfers to and from a disk are aligned to
MAGIC = b"OCTAVOKV"
FORMAT_VERSION = 1
_FIELDS = struct.Struct("<8sIIIQQ32s32s32s")
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class RecordHeader:
    """What a record says of its block.

    Attributes:
        key: the content key.
        stamp: grows from record to record of one file; tells what was written last.
        payload_digest: SHA-256 of the block's bytes.
    """

    key: bytes
    group: int
    token_ids: tuple[int, ...]
    stamp: int
    payload_bytes: int
    payload_digest: bytes

    @classmethod
    def of(cls, block: memoryview, *, key: bytes, group: int, token_ids: tuple[int, ...], stamp: int) -> Self:
        """Returns the header of a block with these bytes."""
        return cls(key, group, token_ids, stamp, len(block), sha256(block).digest())

    def describes(self, block: memoryview) -> bool:
        """Returns whether these are the bytes of which the header was made."""
        return len(block) == self.payload_bytes and sha256(block).digest() == self.payload_digest


def padded(num_bytes: int) -> int:
    """Returns the bytes of the whole pages that hold ``num_bytes``."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


def record_bytes(block_bytes: int) -> int:
    """Returns the bytes of one record."""
    return PAGE_BYTES + padded(block_bytes)


def encode_header(header: RecordHeader, fingerprint: bytes) -> bytes:
    """Returns the header's page."""
    fields = _FIELDS.pack(
        MAGIC,
        FORMAT_VERSION,
        header.group,
        len(header.token_ids),
        header.payload_bytes,
        header.stamp,
        fingerprint,
        header.key,
        header.payload_digest,
    )
    text = fields + array("I", header.token_ids).tobytes()
    assert len(text) + _DIGEST_BYTES <= PAGE_BYTES, "a block has more tokens than a header's page holds"
    return (text + sha256(text).digest()).ljust(PAGE_BYTES, b"\0")


def decode_header(page: bytes, fingerprint: bytes) -> RecordHeader | None:
    """Returns what `encode_header` wrote; None for anything else, another model's header included."""
    if page[: len(MAGIC)] != MAGIC:
        return None
    _, version, group, num_tokens, payload_bytes, stamp, its_fingerprint, key, digest = _FIELDS.unpack_from(page)
    end = _FIELDS.size + 4 * num_tokens
    if end + _DIGEST_BYTES > PAGE_BYTES or page != (page[:end] + sha256(page[:end]).digest()).ljust(PAGE_BYTES, b"\0"):
        return None
    if version != FORMAT_VERSION or its_fingerprint != fingerprint:
        return None
    return RecordHeader(key, group, tuple(array("I", page[_FIELDS.size : end])), stamp, payload_bytes, digest)
