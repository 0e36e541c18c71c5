"""Reads the JSON of model folders.

Owns: turning damaged JSON into errors that name the file. Must not know: what the values mean.
"""

import json
from pathlib import Path
from typing import Any

from octavo.errors import CheckpointError


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """Returns the object that a JSON file holds; an empty one when the file is missing and not required.

    Raises:
        CheckpointError: the file is damaged, or missing although required.
    """
    if path.is_file():
        return parse_json_object(path.read_bytes(), path)
    if required:
        raise CheckpointError(f"{path} is missing", hint="a model folder holds config.json, tokenizer.json and safetensors files")
    return {}


def parse_json_object(text: bytes, path: Path) -> dict[str, Any]:
    """Returns the object that a text holds.

    Raises:
        CheckpointError: it is no JSON object, or one of its names appears twice.
    """
    try:
        parsed = json.loads(text, object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{path}: damaged JSON: {cause}") from cause
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: a JSON object was expected")
    return parsed


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict:
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} appears twice")
    return parsed
