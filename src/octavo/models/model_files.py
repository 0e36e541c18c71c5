"""Everything that a model's files hold, opened and checked, before any weight is read.

Owns: which file gives what. Must not know: what the engine does with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import CheckpointError, ConfigError
from octavo.models.chat_template import DEFAULT_NAME, ChatTemplate
from octavo.models.checkpoint import GGUFSource, SafetensorsSource
from octavo.models.generation_defaults import GenerationDefaults, read_gguf_defaults, read_hf_defaults
from octavo.models.gguf_header import MetadataValue, read_gguf_header
from octavo.models.gguf_tokenizer import build_gguf_tokenizer
from octavo.models.hf_tokenizer import read_hf_tokenizer
from octavo.models.json_files import read_json
from octavo.models.sources import resolve_model
from octavo.models.tensor_source import TensorSource
from octavo.models.tokenizer import Tokenizer

GGUF_TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(frozen=True)
class ModelFiles:
    """One model's files.

    Attributes:
        name: how the model is called towards clients.
        source: its tensors.
        description: what the model's arithmetic is read from: the contents of config.json, or a GGUF header's metadata;
            ``source.naming`` tells which.
        tokenizer: its tokenizer.
        chat_template: its chat template; None when it has none.
        defaults: its sampling values and end tokens.
    """

    name: str
    source: TensorSource
    description: Mapping[str, Any]
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    defaults: GenerationDefaults


def load_model_files(model: str, *, chat_template: Path | None = None) -> ModelFiles:
    """Finds a model, fetches it where needed, and opens its files.

    Args:
        model: an alias, a directory, a .gguf file or a hub id.
        chat_template: a file with a Jinja template to use instead of the model's own.

    Raises:
        ConfigError: there is no such model or no such template file.
        CheckpointError: a file is missing or damaged.
        UnsupportedModelError: the tokenizer is of a kind that is not supported.
    """
    resolved = resolve_model(model)
    template = None if chat_template is None else read_template_file(chat_template)
    if resolved.is_gguf:
        return _open_gguf(resolved.name, resolved.path, template)
    return _open_folder(resolved.name, resolved.path, template)


def read_template_file(path: Path) -> str:
    """Returns the text of a Jinja template file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"the chat template {path} cannot be read: {cause}") from cause


def _open_gguf(name: str, path: Path, template: str | None) -> ModelFiles:
    source = GGUFSource(path, read_gguf_header(path))
    metadata = source.header.metadata
    tokenizer = build_gguf_tokenizer(metadata)
    templates = {DEFAULT_NAME: template} if template is not None else _gguf_templates(metadata)
    return ModelFiles(
        name=name,
        source=source,
        description=metadata,
        tokenizer=tokenizer,
        chat_template=_chat_template(templates, tokenizer),
        defaults=read_gguf_defaults(metadata, tokenizer),
    )


def _open_folder(name: str, folder: Path, template: str | None) -> ModelFiles:
    config = read_json(folder / "config.json", required=True)
    tokenizer_config = read_json(folder / "tokenizer_config.json")
    source = SafetensorsSource(folder)
    tokenizer = read_hf_tokenizer(folder, tokenizer_config)
    templates = {DEFAULT_NAME: template} if template is not None else _folder_templates(folder, tokenizer_config)
    return ModelFiles(
        name=name,
        source=source,
        description=config,
        tokenizer=tokenizer,
        chat_template=_chat_template(templates, tokenizer),
        defaults=read_hf_defaults(config, read_json(folder / "generation_config.json"), tokenizer),
    )


def _chat_template(templates: dict[str, str], tokenizer: Tokenizer) -> ChatTemplate | None:
    if not templates:
        return None
    bos, eos = ("" if token_id is None else tokenizer.token_text(token_id) for token_id in (tokenizer.bos_id, tokenizer.eos_id))
    return ChatTemplate(templates, bos_token=bos, eos_token=eos)


def _gguf_templates(metadata: Mapping[str, MetadataValue]) -> dict[str, str]:
    """Returns the header's templates: one without a name, and possibly others with the name appended to its key."""
    return {
        key.removeprefix(GGUF_TEMPLATE_KEY).removeprefix(".") or DEFAULT_NAME: text
        for key, text in metadata.items()
        if (key == GGUF_TEMPLATE_KEY or key.startswith(GGUF_TEMPLATE_KEY + ".")) and isinstance(text, str)
    }


def _folder_templates(folder: Path, tokenizer_config: Mapping) -> dict[str, str]:
    """Returns a folder's templates: the newest of the three places where they have been kept, files before settings."""
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        files[DEFAULT_NAME] = folder / "chat_template.jinja"
    if files:
        return {name: read_template_file(path) for name, path in files.items()}
    value = tokenizer_config.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    if value is None:
        return {}
    try:
        return {DEFAULT_NAME: value} if isinstance(value, str) else {entry["name"]: entry["template"] for entry in value}
    except (TypeError, KeyError) as cause:
        raise CheckpointError(f"{folder}: chat_template is neither a text nor a list of named texts") from cause
