"""Headers of files on a model hub, read by ranges.

Owns: the calls of huggingface_hub. Must not know: what a header means.

Invariants:
1. Nothing is downloaded but config.json and the first bytes of files that hold tensors.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo.errors import CheckpointError
from octavo.models.gguf_header import GGUFHeader, read_gguf_header
from octavo.models.json_files import read_json

HUB_GGUF = re.compile(r"[\w][\w.-]*/[\w][\w.-]*/.+\.gguf")
# Headers hold the vocabulary: a few MB, rarely more than 16.
FIRST_RANGE_BYTES, MAX_RANGE_BYTES = 16 * 2**20, 128 * 2**20


def read_hub_config(hub_id: str) -> dict[str, Any]:
    """Returns a hub model's config.json.

    Raises:
        CheckpointError: the hub cannot be reached, or has no such file.
    """
    from huggingface_hub import hf_hub_download

    with _hub_errors(hub_id):
        path = hf_hub_download(hub_id, "config.json")
    return read_json(Path(path), required=True)


def read_hub_tensors(hub_id: str) -> dict[str, int] | None:
    """Returns each tensor's length in a hub model's safetensors files; None if it has none."""
    from huggingface_hub import get_safetensors_metadata
    from huggingface_hub.errors import NotASafetensorsRepoError

    try:
        with _hub_errors(hub_id):
            metadata = get_safetensors_metadata(hub_id)
    except NotASafetensorsRepoError:
        return None
    return {
        name: tensor.data_offsets[1] - tensor.data_offsets[0]
        for file in metadata.files_metadata.values()
        for name, tensor in file.tensors.items()
    }


def read_hub_gguf(name: str) -> GGUFHeader:
    """Returns the header of ``org/name/file.gguf`` on the hub.

    Raises:
        CheckpointError: it cannot be reached, or is damaged.
    """
    from huggingface_hub import HfFileSystem

    num_bytes = FIRST_RANGE_BYTES
    while True:
        with _hub_errors(name), HfFileSystem().open(name, "rb", block_size=num_bytes) as file:
            size, start = file.size, file.read(num_bytes)
        try:
            return parse_gguf_start(start, size)
        except CheckpointError:
            if num_bytes >= min(size, MAX_RANGE_BYTES):
                raise
        num_bytes *= 2


def parse_gguf_start(start: bytes, size: int) -> GGUFHeader:
    """Returns the header of a GGUF file of which only the first bytes are known.

    Raises:
        CheckpointError: it is damaged, or longer than these bytes.
    """
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(start)
        file.truncate(size)  # the rest is a hole that takes no room, so that the file's length can be checked
        file.flush()
        header = read_gguf_header(Path(file.name))
    if min((entry.offset for entry in header.tensors.values()), default=0) > len(start):
        raise CheckpointError(f"the GGUF header is longer than the first {len(start)} bytes")
    return header


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Turns what the hub's client raises into one error that names the model."""
    from httpx import HTTPError
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        yield
    except (LocalEntryNotFoundError, EntryNotFoundError, HfHubHTTPError, HTTPError, OSError) as cause:
        message = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise CheckpointError(
            f"{name} cannot be read from the model hub: {message}",
            hint="check the name and the connection, and HF_TOKEN for a gated model; or give its config.json",
        ) from cause
