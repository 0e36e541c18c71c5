"""Tensors out of safetensors and GGUF files.

Owns: the two file formats' readers behind `octavo.models.tensor_source.TensorSource`. Must not know: any architecture.

Headers are read and checked when a source is opened. Tensors are read one at a time into memory of their own: no file stays
open or mapped, and what had to be fetched leaves the page cache at once, so that loading needs little more memory than the loaded
model. A file that the cache held as a whole before stays there, and the next start is as quick as this one.

Invariants:
1. Opening a source raises for every fault that headers and file sizes show; nothing of the model has been touched by then.
"""

import errno
import math
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np

from octavo.errors import CheckpointError
from octavo.kernels.host_tensor import DENSE_DTYPES, HostTensor
from octavo.models.gguf_header import GGUFHeader, TensorEntry, read_gguf_header
from octavo.models.json_files import parse_json_object, read_json

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MIN_DROPPED_BYTES = 2**20  # smaller tensors' pages leave with the next large one: dropping costs their neighbours' readahead
READ_BYTES = 16 * 2**20  # so much of a file, and what the system reads ahead, is in the page cache at once
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
SAFETENSORS_ENCODINGS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


class GGUFSource:
    """The tensors of one GGUF file.

    Args:
        path: the file.
        header: what `read_gguf_header` returned for it; read here when not given.

    Raises:
        CheckpointError: the file is damaged, or one part of a model that was split over several files.
    """

    naming = "gguf"

    def __init__(self, path: Path, header: GGUFHeader | None = None):
        self.path = path
        self.header = header or read_gguf_header(path)
        num_files = self.header.metadata.get("split.count", 1)
        if num_files != 1:
            raise CheckpointError(
                f"{path} is one of {num_files} files of a split model", hint="join them with llama.cpp's llama-gguf-split --merge"
            )

    def names(self) -> Collection[str]:
        """Returns the name of every tensor."""
        return self.header.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's logical shape, outermost first."""
        return self.entry(name).shape

    def entry(self, name: str) -> TensorEntry:
        """Returns what the header says of a tensor."""
        return _find(self.header.tensors, name, self.path)

    def read(self, name: str) -> HostTensor:
        """Returns one tensor as the file holds it."""
        return _read_tensor(self.path, name, self.entry(name))


class SafetensorsSource:
    """The tensors of a folder with one or several safetensors files.

    ``model.safetensors``, where there is one, is the whole model and an index beside it is not read. Otherwise the index names the
    files, and has to agree with their headers tensor by tensor. Without either, a folder's only safetensors file is taken.

    Raises:
        CheckpointError: there is no such file, one is missing or damaged, or the index and the files disagree.
    """

    naming = "hf"

    def __init__(self, folder: Path):
        self.folder = folder
        self._places: dict[str, tuple[Path, TensorEntry]] = {}
        expected = _expected_places(folder)
        for path in sorted(set(expected.values())) or [_only_file(folder)]:
            for name, entry in read_safetensors_header(path).items():
                if name in self._places:
                    raise CheckpointError(f"tensor {name!r} is in both {self._places[name][0]} and {path}")
                if expected and expected.get(name) != path:
                    raise CheckpointError(f"{path} holds tensor {name!r}, which {folder / INDEX_NAME} does not place there")
                self._places[name] = path, entry
        for name in expected.keys() - self._places.keys():
            raise CheckpointError(f"{folder / INDEX_NAME} places tensor {name!r} in {expected[name]}, which does not hold it")

    def names(self) -> Collection[str]:
        """Returns the name of every tensor."""
        return self._places.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape, outermost first."""
        return self.entry(name).shape

    def entry(self, name: str) -> TensorEntry:
        """Returns what the headers say of a tensor."""
        return _find(self._places, name, self.folder)[1]

    def read(self, name: str) -> HostTensor:
        """Returns one tensor as the file holds it."""
        path, entry = _find(self._places, name, self.folder)
        return _read_tensor(path, name, entry)


def read_safetensors_header(path: Path) -> dict[str, TensorEntry]:
    """Returns where each tensor of a safetensors file lies.

    Raises:
        CheckpointError: the header is damaged, or a tensor has an unsupported type or lies outside the file.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is {'not a file' if path.exists() else 'missing'}", hint="fetch the model's files again")
    size = path.stat().st_size
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size < 8 or header_bytes > min(size - 8, MAX_HEADER_BYTES):
            raise CheckpointError(f"{path}: not a safetensors file or truncated: a header of {header_bytes} in {size} bytes")
        header = parse_json_object(file.read(header_bytes), path)
    header.pop("__metadata__", None)
    data_start = 8 + header_bytes
    entries = {name: _safetensors_entry(path, name, fields, data_start, size) for name, fields in header.items()}
    end = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if entry.offset != end:
            raise CheckpointError(f"{path}: tensor {name!r} begins at byte {entry.offset} instead of {end}")
        end += entry.num_bytes
    if end != size:
        raise CheckpointError(f"{path}: {size} bytes, but its tensors end at byte {end}")
    return entries


def _safetensors_entry(path: Path, name: str, fields: object, data_start: int, size: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
        valid = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        encoding = SAFETENSORS_ENCODINGS.get(dtype)
    except (KeyError, TypeError, ValueError) as cause:
        raise CheckpointError(f"{path}: the header's entry for tensor {name!r} is damaged") from cause
    if encoding is None:
        raise CheckpointError(f"{path}: tensor {name!r} has type {dtype}; supported: {', '.join(SAFETENSORS_ENCODINGS)}")
    if not valid or end - begin != math.prod(shape) * DENSE_DTYPES[encoding].itemsize:
        raise CheckpointError(f"{path}: tensor {name!r} of type {dtype} and shape {shape} cannot fill bytes {begin} to {end}")
    if data_start + end > size:
        raise CheckpointError(f"{path}: truncated: tensor {name!r} ends at byte {data_start + end}, the file at {size}")
    return TensorEntry(shape, encoding, data_start + begin, end - begin)


def _expected_places(folder: Path) -> dict[str, Path]:
    """Returns the file in which the index places each tensor; empty when the folder's files need no index."""
    index_path = folder / INDEX_NAME
    if (folder / SINGLE_NAME).exists() or not index_path.is_file():
        return {}
    places = read_json(index_path).get("weight_map")
    if not isinstance(places, dict) or not places or not all(_is_file_name(file_name) for file_name in places.values()):
        raise CheckpointError(f"{index_path}: 'weight_map' does not map tensors to files of this folder")
    return {name: folder / file_name for name, file_name in places.items()}


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name == os.path.basename(name) and name not in ("", ".", "..")


def _only_file(folder: Path) -> Path:
    if (folder / SINGLE_NAME).exists():
        return folder / SINGLE_NAME
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise CheckpointError(
            f"{folder} has no {SINGLE_NAME} and no {INDEX_NAME}; safetensors files: {listed}",
            hint="weights in other formats, as pytorch_model.bin, have to be converted to safetensors",
        )
    return found[0]


def _find(entries: dict, name: str, place: Path):
    if name not in entries:
        raise CheckpointError(f"{place} has no tensor {name!r}")
    return entries[name]


def _read_tensor(path: Path, name: str, entry: TensorEntry) -> HostTensor:
    raw = np.empty(entry.num_bytes, np.uint8)
    _read_into(path, name, entry.offset, raw)
    if entry.encoding in DENSE_DTYPES:
        return HostTensor(name, entry.shape, entry.encoding, raw.view(DENSE_DTYPES[entry.encoding]).reshape(entry.shape))
    rows = math.prod(entry.shape[:-1])
    return HostTensor(name, entry.shape, entry.encoding, raw.reshape(*entry.shape[:-1], entry.num_bytes // rows))


def _read_into(path: Path, name: str, offset: int, buffer: np.ndarray) -> None:
    """Fills a buffer from a file, piece by piece. What this brings into the page cache leaves again; what was there stays."""
    with open(path, "rb", buffering=0) as file:
        view, done = memoryview(buffer), 0
        while done < len(view):
            piece = view[done : done + READ_BYTES]
            num_cached = _read_cached(file.fileno(), piece, offset + done)
            num_fetched = os.preadv(file.fileno(), [piece[num_cached:]], offset + done + num_cached)
            if not num_cached + num_fetched:
                raise CheckpointError(f"{path}: truncated: tensor {name!r} has {done} of {len(view)} bytes")
            done += num_cached + num_fetched
            if num_fetched >= MIN_DROPPED_BYTES:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # the whole file: what was read ahead goes too


def _read_cached(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fills the beginning of a buffer with what the page cache has, and returns how many bytes that were."""
    try:
        return os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
            raise
        return 0
