"""Reads a tokenizer from a model folder: ``tokenizer.json`` and ``tokenizer_config.json``.

Owns: these files' meaning. Must not know: GGUF, the engine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


def read_hf_tokenizer(folder: Path, tokenizer_config: Mapping) -> Tokenizer:
    """Returns the tokenizer of a model folder.

    Args:
        folder: where ``tokenizer.json`` is.
        tokenizer_config: what tokenizer_config.json holds; empty when there is none.

    Raises:
        UnsupportedModelError: the folder has only another form of tokenizer.
        CheckpointError: the tokenizer is missing or damaged.
    """
    from tokenizers import Tokenizer as Backend

    path = folder / "tokenizer.json"
    if not path.is_file():
        if (folder / "tokenizer.model").exists():
            raise UnsupportedModelError(
                f"{folder} has a tokenizer.model but no tokenizer.json",
                hint="save the tokenizer again with transformers' AutoTokenizer, which writes tokenizer.json",
            )
        raise CheckpointError(f"{path} is missing")
    try:
        backend = Backend.from_file(str(path))
    except Exception as cause:  # the library raises no narrower type for a file that it cannot read
        raise CheckpointError(f"{path} is damaged: {cause}") from cause
    ids = {role: _special_id(backend, role, tokenizer_config, path) for role in ("bos_token", "eos_token")}
    return Tokenizer(backend, bos_id=ids["bos_token"], eos_id=ids["eos_token"])


def _special_id(backend: "Backend", role: str, tokenizer_config: Mapping, path: Path) -> int | None:
    """Returns the id of the token that tokenizer_config.json names by its text, or by an object with the text as ``content``."""
    named = tokenizer_config.get(role)
    text = named.get("content") if isinstance(named, Mapping) else named
    if text is None:
        return None
    token_id = backend.token_to_id(text) if isinstance(text, str) else None
    if token_id is None:
        raise CheckpointError(f"{path} has no token {text!r}, which tokenizer_config.json names as {role}")
    return token_id
