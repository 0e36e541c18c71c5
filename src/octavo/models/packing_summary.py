"""Says in one line what packing did to a file's tensors.

Owns: the counts and the words. Must not know: how a tensor is packed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.kernels.host_tensor import QUANTISED_ENCODINGS, HostTensor

SAME_FORMAT = {"f32": "fp32", "bf16": "bf16"}  # encodings that are a format of packed weights too
ROUNDED_FORMATS = ("int8", "int4")


@dataclass
class PackingSummary:
    """Counts as weights are packed.

    Attributes:
        matrices: how many there were of each encoding in the file and of what became of it.
        num_vectors: norms and biases; they are held in float32.
        num_bytes: of all packed matrices.
    """

    matrices: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_vectors: int = 0
    num_bytes: int = 0

    def add(self, tensors: Sequence[HostTensor], weight_format: str, num_bytes: int) -> None:
        """Counts tensors that were packed as one matrix."""
        self.matrices.update((tensor.encoding, _fate(tensor.encoding, weight_format)) for tensor in tensors)
        self.num_bytes += num_bytes

    def __str__(self) -> str:
        """Returns the line."""
        parts = [f"{count} {encoding} {fate}" for (encoding, fate), count in self.matrices.items()]
        parts.append(f"{self.num_vectors} norms and biases as float32")
        return f"{', '.join(parts)}: {self.num_bytes / 2**20:.0f} MiB"


def _fate(encoding: str, weight_format: str) -> str:
    if weight_format == SAME_FORMAT.get(encoding) or (encoding in QUANTISED_ENCODINGS and weight_format in ROUNDED_FORMATS):
        return "as in the file"
    return f"rounded to {weight_format} in groups of 32" if weight_format in ROUNDED_FORMATS else f"as {weight_format}"
