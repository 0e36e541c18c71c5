"""What must be equal for stored KV to be the KV that would be computed here.

Owns: the fields and how each is taken. Must not know: where KV is stored.

Invariants:
1. Whatever a block's bits depend on, besides its token ids, is in a field; equal fingerprints mean equal bits.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256

import octavo
from octavo.kernels.cpu import KERNELS_PATH
from octavo.kernels.kv_layout import KVLayout
from octavo.memory.layer_groups import LayerGroup
from octavo.models.spec import ModelSpec
from octavo.models.tensor_source import TensorSource
from octavo.models.tokenizer import Tokenizer

NUM_READERS = 4  # hashing is slower than a good disk; each holds one tensor


@dataclass(frozen=True)
class Fingerprint:
    """One model in one engine.

    Attributes:
        fields: by name; a text each, a digest where the thing itself is large.
    """

    fields: Mapping[str, str]

    @property
    def digest(self) -> bytes:
        """32 bytes for all fields together."""
        return sha256(json.dumps(self.fields, sort_keys=True).encode()).digest()


def take_fingerprint(
    *,
    source: TensorSource,
    spec: ModelSpec,
    tokenizer: Tokenizer,
    weight_format: str,
    layout: KVLayout,
    groups: Sequence[LayerGroup],
    instruction_set: str,
) -> Fingerprint:
    """Returns the fingerprint of a loaded model. Cost: reads every weight once."""
    described = {name: value for name, value in asdict(spec).items() if name not in ("rotaries", "layer_rotaries")}
    return Fingerprint(
        {
            "engine": octavo.__version__,
            "instruction_set": instruction_set,
            "kernels": _file_digest(),
            "config": _digest_of(described),
            "rotary": _digest_of([asdict(rotary) for rotary in spec.rotaries], spec.layer_rotaries),
            "kv_dtype": layout.kv_dtype,
            "layout": f"{layout.block_size} tokens, {layout.num_kv_heads} heads of {layout.head_dim}, groups {_written(groups)}",
            "weight_format": weight_format,
            "tokenizer": sha256(b"\0".join(tokenizer.all_token_bytes())).hexdigest(),
            "weights": _weights_digest(source),
        }
    )


def _digest_of(*values: object) -> str:
    return sha256(repr(values).encode()).hexdigest()


def _written(groups: Sequence[LayerGroup]) -> str:
    return "; ".join(f"{','.join(map(str, group.layers))} window {group.window}" for group in groups)


def _file_digest() -> str:
    with open(KERNELS_PATH, "rb") as file:
        return sha256(file.read()).hexdigest()


def _weights_digest(source: TensorSource) -> str:
    """Returns a digest over all tensors."""
    names = sorted(source.names())

    def digest(name: str) -> bytes:
        tensor = source.read(name)
        head = f"{name} {tensor.shape} {tensor.encoding}".encode()
        return sha256(head + sha256(tensor.data.data).digest()).digest()

    with ThreadPoolExecutor(NUM_READERS) as threads:
        return sha256(b"".join(threads.map(digest, names))).hexdigest()
