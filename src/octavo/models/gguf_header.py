"""The header of a GGUF file: its metadata and where each tensor lies.

Owns: the file format's layout and every check that can be made before a tensor is read. Must not know: what the metadata mean.
The `gguf` package maps the file and takes seconds over a large vocabulary; this reader takes a fraction of one.

Invariants:
1. No length or count from the file is believed before it is compared with the bytes that are left.
2. Every tensor of a returned header lies inside the file and overlaps no other.
"""

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from octavo.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_NUM_DIMS = 4
DEFAULT_ALIGNMENT = 32
READ_AHEAD_BYTES = 1 << 20  # a header of 2 to 6 MB is read in a few pieces, and little of the weights behind it

STRING, ARRAY = 8, 9
BOOL = 7
SCALARS = {  # the format's number of a value type -> its numpy equivalent
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}

# The format's number of a tensor type -> (encoding, elements per group, bytes per group).
TENSOR_TYPES = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    30: ("bf16", 1, 2),
}

Scalar = int | float | bool | str
MetadataValue = Scalar | list[str] | np.ndarray


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies.

    Attributes:
        shape: logical shape, outermost first.
        encoding: as in `octavo.kernels.host_tensor.HostTensor`.
        offset: first byte, from the start of the file.
        num_bytes: length in the file.
    """

    shape: tuple[int, ...]
    encoding: str
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GGUFHeader:
    """What a GGUF file says before its tensors; arrays of numbers are numpy arrays, arrays of strings are lists."""

    metadata: dict[str, MetadataValue]
    tensors: dict[str, TensorEntry]


def read_gguf_header(path: Path) -> GGUFHeader:
    """Returns the header of a GGUF file.

    Raises:
        CheckpointError: not a GGUF file, truncated, of an unknown version or tensor type, or inconsistent.
    """
    with open(path, "rb") as file:
        reader = _Reader(file, path)
        num_tensors, num_pairs = _read_preamble(reader)
        metadata: dict[str, MetadataValue] = {}
        for _ in range(num_pairs):
            key = reader.string()
            if key in metadata:
                raise reader.error(f"metadata key {key!r} appears twice")
            metadata[key] = _read_value(reader, reader.scalar("<u4"))
        entries = [_read_tensor_entry(reader) for _ in range(num_tensors)]
        return GGUFHeader(metadata, _place_tensors(reader, entries, metadata.get("general.alignment", DEFAULT_ALIGNMENT)))


class _Reader:
    """A cursor over the file that reads ahead in pieces and checks every length against the file's size."""

    def __init__(self, file: BinaryIO, path: Path):
        self._file = file
        self._buffer = b""
        self._pos = 0
        self._buffer_start = 0
        self.path = path
        self.size = os.fstat(file.fileno()).st_size

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}")

    @property
    def offset(self) -> int:
        """The cursor's distance from the start of the file, in bytes."""
        return self._buffer_start + self._pos

    def require(self, num_bytes: int) -> None:
        """Makes the next bytes available in the buffer."""
        if self._pos + num_bytes <= len(self._buffer):
            return
        left = self.size - self.offset
        if num_bytes > left:
            raise self.error(f"truncated: {num_bytes} bytes expected at offset {self.offset}, {left} left")
        rest = self._buffer[self._pos :]
        self._buffer_start, self._pos = self.offset, 0
        self._buffer = rest + self._file.read(max(num_bytes - len(rest), READ_AHEAD_BYTES))
        if len(self._buffer) < num_bytes:
            raise self.error("the file shrank while it was read")

    def take(self, num_bytes: int) -> bytes:
        self.require(num_bytes)
        self._pos += num_bytes
        return self._buffer[self._pos - num_bytes : self._pos]

    def scalar(self, dtype: str | np.dtype) -> int | float | bool:
        dtype = np.dtype(dtype)
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """Returns the next strings; in local variables, because a vocabulary holds up to 262,144 of them."""
        self.require(count * 8)  # every string has at least its length
        buffer, end, available = self._buffer, self._pos, len(self._buffer)
        strings, unpack_length = [], struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                start = end + 8
                if start <= available:
                    end = start + unpack_length(buffer, end)[0]
                if start > available or end > available:
                    self._pos = start - 8
                    self.require(8)
                    self.require(8 + unpack_length(self._buffer, self._pos)[0])
                    buffer, start, available = self._buffer, self._pos + 8, len(self._buffer)
                    end = start + unpack_length(buffer, self._pos)[0]
                strings.append(buffer[start:end].decode())
        except UnicodeDecodeError as cause:
            raise self.error(f"the string before offset {self._buffer_start + end} is not UTF-8") from cause
        self._pos = end
        return strings


def _read_preamble(reader: _Reader) -> tuple[int, int]:
    """Returns the number of tensors and of metadata pairs."""
    magic = reader.take(min(4, reader.size))
    if magic != MAGIC:
        raise reader.error(f"not a GGUF file: it begins with {magic!r} instead of {MAGIC!r}")
    version = reader.scalar("<u4")
    if version not in VERSIONS:
        raise reader.error(f"GGUF version {version} (little-endian) is not supported, only {VERSIONS}")
    return reader.scalar("<u8"), reader.scalar("<u8")


def _read_value(reader: _Reader, value_type: int) -> MetadataValue:
    if value_type == STRING:
        return reader.string()
    if value_type in SCALARS:
        return reader.scalar(SCALARS[value_type])
    if value_type != ARRAY:
        raise reader.error(f"metadata type {value_type} at offset {reader.offset} is unknown")
    item_type, count = reader.scalar("<u4"), reader.scalar("<u8")
    if item_type == STRING:
        return reader.strings(count)
    if item_type not in SCALARS:
        raise reader.error(f"array of metadata type {item_type} at offset {reader.offset} is not supported")
    dtype = SCALARS[item_type]
    return np.frombuffer(reader.take(count * dtype.itemsize), dtype)


def _read_tensor_entry(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    """Returns name, logical shape, type number and offset from the start of the tensor data."""
    name = reader.string()
    num_dims = reader.scalar("<u4")
    if not 1 <= num_dims <= MAX_NUM_DIMS:
        raise reader.error(f"tensor {name!r} has {num_dims} dimensions, 1 to {MAX_NUM_DIMS} are allowed")
    innermost_first = [reader.scalar("<u8") for _ in range(num_dims)]
    return name, tuple(reversed(innermost_first)), reader.scalar("<u4"), reader.scalar("<u8")


def _place_tensors(reader: _Reader, entries: list, alignment: MetadataValue) -> dict[str, TensorEntry]:
    """Turns the tensor table into places in the file and checks them (invariant 2)."""
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise reader.error(f"general.alignment is {alignment!r}, not a multiple of 8")
    data_start = -(-reader.offset // alignment) * alignment
    tensors: dict[str, TensorEntry] = {}
    for name, shape, type_number, relative_offset in entries:
        if name in tensors:
            raise reader.error(f"tensor {name!r} appears twice")
        encoding, num_bytes = _measure(reader, name, shape, type_number)
        entry = TensorEntry(shape, encoding, data_start + relative_offset, num_bytes)
        if relative_offset % alignment or entry.offset + num_bytes > reader.size:
            raise reader.error(
                f"tensor {name!r} has {num_bytes} bytes at offset {entry.offset}, "
                f"which is not aligned to {alignment} or ends behind the file's {reader.size} bytes: the file may be truncated"
            )
        tensors[name] = entry
    end = data_start
    for name, entry in sorted(tensors.items(), key=lambda item: item[1].offset):
        if entry.offset < end:
            raise reader.error(f"tensor {name!r} overlaps the one before it")
        end = entry.offset + entry.num_bytes
    return tensors


def _measure(reader: _Reader, name: str, shape: tuple[int, ...], type_number: int) -> tuple[str, int]:
    """Returns a tensor's encoding and its length in bytes."""
    if type_number not in TENSOR_TYPES:
        supported = ", ".join(encoding.upper() for encoding, _, _ in TENSOR_TYPES.values())
        raise reader.error(f"tensor {name!r} has type {_type_name(type_number)}; supported: {supported}")
    encoding, group_size, group_bytes = TENSOR_TYPES[type_number]
    if 0 in shape or shape[-1] % group_size:
        raise reader.error(f"tensor {name!r} of type {encoding.upper()} has shape {shape}; rows must be multiples of {group_size}")
    return encoding, math.prod(shape) // group_size * group_bytes


def _type_name(type_number: int) -> str:
    import gguf  # only a failing load needs the names of the types that are not supported

    names = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    return names.get(type_number, f"number {type_number}")
