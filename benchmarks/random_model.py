"""A checkpoint of random weights in the size of a model that `octavo plan` knows: speed depends on sizes, not on what was learned.

Owns: the files that make it loadable. Must not know: what is measured with it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from octavo.models.hf_config import from_hf_config
from octavo.models.tensor_names import expected_tensors
from octavo.planner.shipped_models import shipped_models

REPEATED_VALUES = 2**20  # drawing every weight anew would take minutes
SPREAD = 0.02


def write_shape(folder: Path, name: str) -> None:
    """Writes the checkpoint of a model of the planner's table.

    Args:
        folder: an existing directory.
        name: as ``octavo plan`` takes it.
    """
    write_checkpoint(folder, shipped_models()[name].config)


def write_checkpoint(folder: Path, config: Mapping[str, Any]) -> None:
    """Writes config.json, bf16 weights and a tokenizer of single bytes."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _write_weights(folder / "model.safetensors", config)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def _write_weights(path: Path, config: Mapping[str, Any]) -> None:
    """Writes the tensors that the engine expects, as a safetensors file."""
    spec = from_hf_config(dict(config))
    shapes = {entry.name: entry.shape for entry in expected_tensors(spec, "hf", ["model.embed_tokens.weight"]).values()}
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    values = SPREAD * np.random.default_rng(1).standard_normal(REPEATED_VALUES, np.float32)
    matrix, vector = _bf16(values), _bf16(1 + values)
    encoded = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for shape in shapes.values():
            np.resize(vector if len(shape) == 1 else matrix, shape).tofile(file)


def _bf16(values: np.ndarray) -> np.ndarray:
    """Returns the upper halves of float32 values."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)
