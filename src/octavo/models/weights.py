"""A model's weights, packed for one backend.

Owns: checking a file's tensors against the spec, and packing them one after the other. Must not know: file formats, the layout
of a packed weight.

Invariants:
1. Nothing is read before every name and shape has been checked.
2. A tensor's bytes are dropped as soon as it is packed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.errors import CheckpointError
from octavo.kernels.host_tensor import QUANTISED_ENCODINGS, HostTensor
from octavo.kernels.operations import Operations, PackedWeight
from octavo.models.packing_summary import PackingSummary
from octavo.models.spec import ModelSpec
from octavo.models.tensor_names import Part, TensorEntry, expected_tensors, head_name, hf_prefix, is_ignorable
from octavo.models.tensor_source import TensorSource


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Norms and biases are float32 vectors; None where the model has none."""

    attention_norm: np.ndarray
    qkv: PackedWeight
    qkv_bias: np.ndarray | None
    q_norm: np.ndarray | None
    k_norm: np.ndarray | None
    output: PackedWeight
    output_bias: np.ndarray | None
    post_attention_norm: np.ndarray | None
    mlp_norm: np.ndarray
    gate_up: PackedWeight
    down: PackedWeight
    post_mlp_norm: np.ndarray | None


@dataclass(frozen=True)
class DecoderWeights:
    """All of a model's weights.

    Attributes:
        head: the output head; the same object as ``embedding`` when tied.
        inverse_frequencies: float64, one array per rotation of the spec, with the corrections that the file holds applied.
        packing: what was done to the file's tensors.
    """

    embedding: PackedWeight
    layers: tuple[LayerWeights, ...]
    final_norm: np.ndarray
    head: PackedWeight
    inverse_frequencies: tuple[np.ndarray, ...]
    packing: PackingSummary

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed weights; norms and biases, below a thousandth, are left out."""
        return self.packing.num_bytes


def load_weights(spec: ModelSpec, source: TensorSource, ops: Operations, weight_format: str) -> DecoderWeights:
    """Checks ``source`` against ``spec``, then reads and packs it tensor by tensor.

    Args:
        weight_format: as `Operations.pack_weight` takes it, or "auto": what the file holds, F16 as bf16.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or belongs to nothing in the spec.
    """
    entries = expected_tensors(spec, source.naming, source.names())
    check_tensors(spec, source, entries)
    return Loader(spec, source, ops, weight_format, entries).load()


def check_tensors(spec: ModelSpec, source: TensorSource, entries: Mapping[Part, TensorEntry]) -> None:
    """Raises `CheckpointError` naming the first tensor that is missing, mis-shaped or unknown."""
    present = set(source.names())
    for entry in entries.values():
        if entry.name not in present:
            raise CheckpointError(f"tensor {entry.name!r} {list(entry.shape)} is missing from the checkpoint")
        shape = tuple(source.shape(entry.name))
        if shape != entry.shape:
            raise CheckpointError(
                f"tensor {entry.name!r} has shape {list(shape)}; the model's description asks for {list(entry.shape)}"
            )
    unknown = sorted(
        name for name in present - {entry.name for entry in entries.values()} if not is_ignorable(name, spec, source.naming)
    )
    if unknown:
        raise CheckpointError(
            f"the checkpoint has {len(unknown)} tensors that the model's description does not, first {unknown[0]!r}"
        )


def resolve_format(weight_format: str, tensors: Sequence[HostTensor]) -> str:
    """Returns the format to pack ``tensors`` in: the one asked for, or what "auto" means for them.

    Quantised tensors keep their bits under "int8" and "int4" alike; dense ones stacked with them are rounded to it.
    """
    if weight_format != "auto":
        return weight_format
    encodings = {tensor.encoding for tensor in tensors}
    if encodings & set(QUANTISED_ENCODINGS):
        return "int8"
    return "fp32" if "f32" in encodings else "bf16"


class Loader:
    """Reads parts by what they are and packs them."""

    def __init__(
        self, spec: ModelSpec, source: TensorSource, ops: Operations, weight_format: str, entries: Mapping[Part, TensorEntry]
    ):
        self.spec = spec
        self.source = source
        self.ops = ops
        self.weight_format = weight_format
        self.entries = entries
        self.packing = PackingSummary()

    def load(self) -> DecoderWeights:
        embedding, head = self.embedding_and_head()
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(self.layer(index) for index in range(self.spec.num_layers)),
            final_norm=self.norm(None, "final_norm"),
            head=head,
            inverse_frequencies=self.inverse_frequencies(),
            packing=self.packing,
        )

    def layer(self, layer: int) -> LayerWeights:
        fused = (layer, "qkv") in self.entries
        return LayerWeights(
            attention_norm=self.norm(layer, "attention_norm"),
            qkv=self.packed(layer, *(("qkv",) if fused else ("q", "k", "v"))),
            qkv_bias=self.vector(layer, "q_bias", "k_bias", "v_bias"),
            q_norm=self.norm(layer, "q_norm"),
            k_norm=self.norm(layer, "k_norm"),
            output=self.packed(layer, "output"),
            output_bias=self.vector(layer, "output_bias"),
            post_attention_norm=self.norm(layer, "post_attention_norm"),
            mlp_norm=self.norm(layer, "mlp_norm"),
            gate_up=self.packed(layer, *(("gate_up",) if fused else ("gate", "up"))),
            down=self.packed(layer, "down"),
            post_mlp_norm=self.norm(layer, "post_mlp_norm"),
        )

    def read(self, layer: int | None, part: str) -> HostTensor:
        tensor = self.source.read(self.entries[layer, part].name)
        if part in ("q", "k", "q_bias", "k_bias") and self.source.naming == "gguf" and self.spec.architecture == "llama":
            return halves_from_pairs(tensor, self.spec.head_dim)
        return tensor

    def packed(self, layer: int | None, *parts: str) -> PackedWeight:
        return self.pack([self.read(layer, part) for part in parts])

    def pack(self, tensors: Sequence[HostTensor]) -> PackedWeight:
        weight_format = resolve_format(self.weight_format, tensors)
        packed = self.ops.pack_weight(tensors, weight_format)
        self.packing.add(tensors, weight_format, packed.num_bytes)
        return packed

    def vector(self, layer: int | None, *parts: str) -> np.ndarray | None:
        if (layer, parts[0]) not in self.entries:
            return None
        self.packing.num_vectors += len(parts)
        return np.concatenate([self.read(layer, part).to_float32() for part in parts])

    def norm(self, layer: int | None, part: str) -> np.ndarray | None:
        weight = self.vector(layer, part)
        return None if weight is None else weight + np.float32(self.spec.norm_weight_offset)

    def embedding_and_head(self) -> tuple[PackedWeight, PackedWeight]:
        """Packs both; a tied model that ships a head of its own which differs from its table uses that head."""
        table = self.source.read(self.entries[None, "embedding"].name)
        embedding = self.pack([table])
        if not self.spec.tied_head:
            return embedding, self.packed(None, "head")
        name = self.shipped_head()
        if name is None:
            return embedding, embedding
        head = self.source.read(name)
        if head.shape == table.shape and np.array_equal(head.data, table.data):
            return embedding, embedding
        return embedding, self.pack([head])

    def shipped_head(self) -> str | None:
        names = self.source.names()
        name = head_name(self.source.naming, hf_prefix(names) if self.source.naming == "hf" else "")
        return name if name in names else None

    def inverse_frequencies(self) -> tuple[np.ndarray, ...]:
        """Returns the spec's frequencies, divided by the factors that a GGUF file may hold."""
        factors: np.ndarray | float = 1.0
        for name in ("rope_freqs.weight", "rope_factors_short.weight"):
            if self.source.naming == "gguf" and name in self.source.names():
                factors = self.source.read(name).to_float32().astype(np.float64)
        return tuple(np.array(rotary.inverse_frequencies) / factors for rotary in self.spec.rotaries)


def halves_from_pairs(tensor: HostTensor, head_dim: int) -> HostTensor:
    """Returns a q or k projection for rotation in halves, given one whose rows are ordered for rotation of neighbours.

    GGUF files of the llama architecture hold row ``i`` of each head's first half at ``2 i`` and of its second half at
    ``2 i + 1``. Whole rows move, so quantised tensors are handled alike.
    """
    order = np.arange(tensor.shape[0]).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).ravel()
    return HostTensor(tensor.name, tensor.shape, tensor.encoding, tensor.data[order])
