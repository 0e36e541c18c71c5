"""From what a user calls a model to its description and, where there are headers, its tensors' lengths.

Owns: telling names, files, folders and hub ids apart. Must not know: formats' sizes, machines.

Invariants:
1. No weight is read: of local files the headers, of a hub's files the ranges that hold them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import CheckpointError, ConfigError
from octavo.models.cache_directory import cache_directory
from octavo.models.gguf_config import from_gguf_metadata
from octavo.models.gguf_header import GGUFHeader, read_gguf_header
from octavo.models.json_files import read_json
from octavo.models.packaged_models import PACKAGED_MODELS
from octavo.models.sources import HUB_ID, cached_snapshot
from octavo.planner.config_reader import read_plan_spec
from octavo.planner.engine_models import plan_spec
from octavo.planner.hub_headers import HUB_GGUF, read_hub_config, read_hub_gguf, read_hub_tensors
from octavo.planner.packed_sizes import packed_bytes
from octavo.planner.plan_spec import PlanSpec
from octavo.planner.shipped_models import shipped_models

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


@dataclass(frozen=True)
class DescribedModel:
    """A model that can be planned.

    Attributes:
        tensors: each tensor's bytes in memory: its length in the file, unless this engine widens it while it packs it; None where
            no file with tensors is known.
    """

    name: str
    spec: PlanSpec
    tensors: Mapping[str, int] | None


def describe_model(model: str) -> DescribedModel:
    """Returns the description of a model.

    Args:
        model: a path (folder, config.json, .safetensors, .gguf), a name of the shipped table, or a hub id ``org/name``,
            with ``/file.gguf`` behind it for a GGUF file.

    Raises:
        ConfigError: there is no such model.
        CheckpointError, UnsupportedModelError: its files are damaged, or describe what the planner does not know.
    """
    path = Path(model).expanduser()
    if path.exists():
        return describe_path(path)
    if model in PACKAGED_MODELS:
        packaged = cache_directory() / "models" / PACKAGED_MODELS[model].file_name
        if packaged.is_file():
            return describe_gguf(model, read_gguf_header(packaged))
    if model in shipped_models():
        return DescribedModel(model, read_plan_spec(shipped_models()[model].config), None)
    if HUB_GGUF.fullmatch(model):
        return describe_gguf(model, read_hub_gguf(model))
    if HUB_ID.fullmatch(model):
        return describe_hub_model(model)
    raise ConfigError(
        f"model={model!r} is neither a file, a folder, a hub id nor a shipped name", hint="octavo plan --list shows the names"
    )


def describe_path(path: Path) -> DescribedModel:
    """Returns the description of a model on this machine."""
    if path.suffix == ".gguf":
        return describe_gguf(path.stem, read_gguf_header(path))
    if path.suffix == ".json":
        return DescribedModel(path.parent.name or path.stem, read_plan_spec(read_json(path, required=True)), None)
    folder = path if path.is_dir() else path.parent
    config = folder / "config.json"
    ggufs = sorted(folder.glob("*.gguf"))
    if path.is_dir() and not config.exists() and len(ggufs) == 1:
        return describe_gguf(ggufs[0].stem, read_gguf_header(ggufs[0]))
    files = sorted(folder.glob("*.safetensors"))
    tensors = {name: size for file in files for name, size in read_tensor_lengths(file).items()}
    return DescribedModel(folder.resolve().name, read_plan_spec(read_json(config, required=True)), tensors or None)


def describe_gguf(name: str, header: GGUFHeader) -> DescribedModel:
    """Returns the description that a GGUF header holds; only models that this engine runs have one."""
    spec = plan_spec(from_gguf_metadata(header.metadata, header.tensors))
    entries = header.tensors.items()
    tensors = {tensor: packed_bytes(entry.encoding, entry.shape, entry.num_bytes) for tensor, entry in entries}
    return DescribedModel(name, spec, tensors)


def describe_hub_model(hub_id: str) -> DescribedModel:
    """Returns the description of a model on the hub; a complete copy on this machine is used instead."""
    snapshot = cached_snapshot(hub_id)
    if snapshot is not None:
        local = describe_path(snapshot)
        return DescribedModel(hub_id, local.spec, local.tensors)
    return DescribedModel(hub_id, read_plan_spec(read_hub_config(hub_id)), read_hub_tensors(hub_id))


def read_tensor_lengths(path: Path) -> dict[str, int]:
    """Returns each tensor's length in a safetensors file, whatever its type.

    Raises:
        CheckpointError: the header is damaged.
    """
    with open(path, "rb") as file:
        num_bytes = int.from_bytes(file.read(8), "little")
        if num_bytes > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: not a safetensors file: a header of {num_bytes} bytes")
        text = file.read(num_bytes)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        lengths = {name: entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as cause:
        raise CheckpointError(f"{path}: the safetensors header is damaged: {cause}") from cause
    for name, length in lengths.items():
        if type(length) is not int or length < 0:
            raise CheckpointError(f"{path}: the safetensors header is damaged: tensor {name!r} has {length!r} bytes")
    return lengths
