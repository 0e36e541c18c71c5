"""From what a user calls a model to its files on this machine.

Owns: telling aliases, paths and hub ids apart, and fetching what is not here yet. Must not know: what the files hold.

Invariants:
1. A model that is complete on this machine is used as it is, without touching the network.
"""

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from octavo.errors import CheckpointError, ConfigError
from octavo.models.checkpoint import INDEX_NAME, SINGLE_NAME
from octavo.models.json_files import read_json
from octavo.models.packaged_models import PACKAGED_MODELS, packaged_model_path

HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
HUB_FILES = ["*.json", "*.jinja", "*.safetensors"]  # weights in other formats stay where they are


@dataclass(frozen=True)
class ResolvedModel:
    """A model's place on this machine.

    Attributes:
        name: how the model is called towards clients.
        path: a .gguf file, or a folder with config.json and safetensors files.
        is_gguf: which of the two.
    """

    name: str
    path: Path
    is_gguf: bool


def resolve_model(model: str) -> ResolvedModel:
    """Returns where a model's files are, fetching them first where needed.

    Args:
        model: an alias, else an existing path, else a hub id such as ``org/name``.

    Raises:
        ConfigError: there is no such alias or path.
        CheckpointError: the files cannot be fetched.
    """
    if model in PACKAGED_MODELS:
        return ResolvedModel(model, packaged_model_path(PACKAGED_MODELS[model]), is_gguf=True)
    if not model:
        raise _unknown_model(model)
    path = Path(model).expanduser()
    if path.is_file():
        return ResolvedModel(path.stem, path, is_gguf=True)
    if path.is_dir():
        return _resolve_folder(path)
    if HUB_ID.fullmatch(model) and path.suffix != ".gguf":
        return ResolvedModel(model, cached_snapshot(model) or fetch_snapshot(model), is_gguf=False)
    raise _unknown_model(model)


def pull_model(model: str) -> ResolvedModel:
    """Fetches a model's files, the newest ones of a hub model, and returns where they are.

    Raises:
        ConfigError, CheckpointError: as `resolve_model`.
    """
    if model not in PACKAGED_MODELS and HUB_ID.fullmatch(model) and not Path(model).expanduser().exists():
        return ResolvedModel(model, fetch_snapshot(model), is_gguf=False)
    return resolve_model(model)


def _resolve_folder(folder: Path) -> ResolvedModel:
    """A folder without config.json but with a single GGUF file stands for that file."""
    ggufs = sorted(folder.glob("*.gguf"))
    if not (folder / "config.json").exists() and ggufs:
        if len(ggufs) > 1:
            names = ", ".join(path.name for path in ggufs)
            raise ConfigError(f"model={str(folder)!r} holds several GGUF files: {names}", hint="name one of the files")
        return ResolvedModel(ggufs[0].stem, ggufs[0], is_gguf=True)
    if not (folder / "config.json").exists():
        raise CheckpointError(f"model={str(folder)!r} is a folder without a model: it has neither config.json nor a .gguf file")
    return ResolvedModel(folder.resolve().name, folder, is_gguf=False)


def _unknown_model(model: str) -> ConfigError:
    close = get_close_matches(model, PACKAGED_MODELS, n=1)
    aliases = ", ".join(PACKAGED_MODELS)
    hint = f"did you mean {close[0]}?" if close else f"give a folder, a .gguf file, a hub id as org/name, or one of {aliases}"
    return ConfigError(f"model={model!r} is neither a file, a folder, a hub id nor a known alias", hint=hint)


def cached_snapshot(hub_id: str) -> Path | None:
    """Returns the folder in which huggingface_hub keeps a model, or None when it is not there completely.

    Reads the library's folder layout instead of importing it, which takes longer than everything else here.
    """
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    reference = repository / "refs" / "main"
    if not reference.is_file():
        return None
    snapshot = repository / "snapshots" / reference.read_text().strip()
    return snapshot if _is_complete(snapshot) else None


def _is_complete(snapshot: Path) -> bool:
    """Returns whether no file that loading needs is missing; an interrupted download leaves some out."""
    if not all((snapshot / name).is_file() for name in ("config.json", "tokenizer.json")):
        return False
    shards = read_json(snapshot / INDEX_NAME).get("weight_map")
    names = set(shards.values()) if isinstance(shards, dict) else {SINGLE_NAME}
    return (snapshot / SINGLE_NAME).is_file() or all((snapshot / name).is_file() for name in names)


def fetch_snapshot(hub_id: str) -> Path:
    """Downloads a model from the hub with huggingface_hub, which shows its progress, and returns its folder.

    Raises:
        CheckpointError: the hub cannot be reached, has no such model, or it has no safetensors files.
    """
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=HUB_FILES))
    except LocalEntryNotFoundError as cause:
        raise CheckpointError(
            f"{hub_id} is not on this machine and the model hub cannot be reached", hint="connect once, or give a local folder"
        ) from cause
    except (HfHubHTTPError, HTTPError, OSError) as cause:
        message = str(cause).strip().splitlines()[0]
        raise CheckpointError(
            f"{hub_id} cannot be fetched from the model hub: {message}", hint="check the name, and HF_TOKEN for a gated model"
        ) from cause
    if not any(folder.glob("*.safetensors")):
        raise CheckpointError(f"{hub_id} has no safetensors files", hint="for a GGUF file, download it and give its path")
    return folder
