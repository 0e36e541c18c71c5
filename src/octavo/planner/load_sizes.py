"""What loading a model takes, from its files' headers.

Owns: the sizes of weights once this engine has packed them, and of what it holds beside them while it packs. Must not know:
budgets.

Invariants:
1. Nothing of a tensor but its entry in the header is read.
"""

from dataclasses import dataclass

from octavo.kernels.host_tensor import QUANTISED_ENCODINGS
from octavo.kernels.kv_layout import round_up
from octavo.models.gguf_header import TensorEntry
from octavo.models.spec import ModelSpec
from octavo.models.tensor_names import expected_tensors
from octavo.models.tensor_source import TensorSource
from octavo.planner.formats import weight_format
from octavo.planner.packed_sizes import GROUP_SIZE, OUTPUTS_PER_PANEL, packed_bytes

STACKED_PARTS = (("q", "k", "v"), ("gate", "up"))  # read one after the other, then packed as one matrix


@dataclass(frozen=True)
class LoadSizes:
    """Bytes of one model.

    Attributes:
        weight_bytes: the packed weights.
        unpacked_bytes: the most that is held beside them: tensors as the file has them, read and not yet packed.
    """

    weight_bytes: int
    unpacked_bytes: int


def load_sizes(spec: ModelSpec, source: TensorSource, weights: str) -> LoadSizes:
    """Returns the sizes for weights held in the format ``weights``, a value of `EngineConfig.weights`.

    Raises:
        CheckpointError: the files lack a tensor that the model needs.
    """
    expected = expected_tensors(spec, source.naming, source.names())
    entries = {part: source.entry(tensor.name) for part, tensor in expected.items()}
    unpacked = [entry.num_bytes for entry in entries.values()]
    for layer in range(spec.num_layers):
        for parts in STACKED_PARTS:
            unpacked.append(sum(entries[layer, part].num_bytes for part in parts if (layer, part) in entries))
    return LoadSizes(sum(_size_in_memory(entry, weights) for entry in entries.values()), max(unpacked))


def _size_in_memory(entry: TensorEntry, weights: str) -> int:
    keeps_its_bits = weights == "auto" or (weights in ("int8", "int4") and entry.encoding in QUANTISED_ENCODINGS)
    if keeps_its_bits or len(entry.shape) != 2:
        return packed_bytes(entry.encoding, entry.shape, entry.num_bytes)
    num_elements = round_up(entry.shape[0], OUTPUTS_PER_PANEL) * round_up(entry.shape[1], GROUP_SIZE)
    return weight_format(weights).storage.num_bytes(num_elements)
