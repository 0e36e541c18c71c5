"""A tensor as it lies in a model file, before it is packed for a kernel.

Owns: the pairing of raw file bytes with their encoding, and how to undo that encoding. Must not know: which model or which
layer the tensor belongs to.

Invariants:
1. ``data`` is what the file holds, bit for bit; nothing is expanded before somebody asks for it.
"""

from dataclasses import dataclass

import numpy as np

DENSE_DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(np.uint16)}
QUANTISED_ENCODINGS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")


@dataclass(frozen=True)
class HostTensor:
    """One tensor of a model file.

    Attributes:
        name: the tensor's name in the file, for messages.
        shape: the logical shape, outermost first; a linear weight is ``(out_features, in_features)``.
        encoding: a key of `DENSE_DTYPES` or a member of `QUANTISED_ENCODINGS`.
        data: dense: an array of ``shape`` (bf16 as its uint16 bits); quantised: uint8 ``[*shape[:-1], bytes_per_row]``.
    """

    name: str
    shape: tuple[int, ...]
    encoding: str
    data: np.ndarray

    def to_float32(self) -> np.ndarray:
        """Returns the values as a new float32 array of ``shape``."""
        if self.encoding == "bf16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        if self.encoding in DENSE_DTYPES:
            return self.data.astype(np.float32)
        import gguf  # a fifth of a second, which weights that keep their encoding never spend

        kind = gguf.GGMLQuantizationType[self.encoding.upper()]
        return gguf.dequantize(self.data, kind).astype(np.float32, copy=False).reshape(self.shape)
