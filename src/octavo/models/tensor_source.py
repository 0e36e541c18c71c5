"""Where a model's tensors are read from, whatever the file format.

Owns: the one interface between model files and `octavo.models.weights`. Must not know: any file format, any architecture.

Invariants:
1. Asking for names, shapes or encodings reads headers only; `read` touches the bytes of one tensor.
"""

from collections.abc import Collection
from typing import Protocol

from octavo.kernels.host_tensor import HostTensor
from octavo.models.gguf_header import TensorEntry


class TensorSource(Protocol):
    """A model's tensors under the names that its file gives them."""

    @property
    def naming(self) -> str:
        """Which table of tensor names the file follows: "hf" (safetensors) or "gguf"."""
        ...

    def names(self) -> Collection[str]:
        """Returns the name of every tensor."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the logical shape, outermost first; a linear weight is ``(out_features, in_features)``.

        Raises:
            CheckpointError: there is no such tensor.
        """
        ...

    def entry(self, name: str) -> TensorEntry:
        """Returns what the file's header says of a tensor.

        Raises:
            CheckpointError: there is no such tensor.
        """
        ...

    def read(self, name: str) -> HostTensor:
        """Returns one tensor as the file holds it; the caller owns the result and may drop it.

        Raises:
            CheckpointError: there is no such tensor, or its bytes are truncated.
        """
        ...
