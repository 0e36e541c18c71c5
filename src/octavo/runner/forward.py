"""Runs the decoder for one step: recorded once and replayed, or call by call.

Owns: which rows of the arrays a step computes. Must not know: what the decoder does.
"""

from collections.abc import Sequence
from typing import Protocol

from octavo.kernels.cpu import CpuOperations
from octavo.kernels.operations import Operations
from octavo.kernels.step_arrays import StepArrays
from octavo.models.decoder import DecoderBuffers, LayerCache, forward
from octavo.models.spec import ModelSpec
from octavo.models.weights import DecoderWeights
from octavo.runner.batch_arrays import StepSizes


class Forward(Protocol):
    """The decoder, bound to its weights, caches and arrays."""

    def run(self, sizes: StepSizes) -> None:
        """Computes the hidden states of the step that the arrays describe."""
        ...


class RecordedForward:
    """A program of the C++ backend: one call per step, whatever the number of layers."""

    def __init__(
        self,
        operations: CpuOperations,
        spec: ModelSpec,
        weights: DecoderWeights,
        step: StepArrays,
        caches: Sequence[LayerCache],
        buffers: DecoderBuffers,
    ):
        self._program = operations.record()
        forward(self._program, spec, weights, step, caches, buffers)

    def run(self, sizes: StepSizes) -> None:
        """See `Forward.run`."""
        self._program.run(sizes.num_tokens, sizes.num_seqs)


class EagerForward:
    """The decoder called anew for each step, on exactly the step's rows."""

    def __init__(
        self,
        operations: Operations,
        spec: ModelSpec,
        weights: DecoderWeights,
        step: StepArrays,
        caches: Sequence[LayerCache],
        buffers: DecoderBuffers,
    ):
        self._arguments = (operations, spec, weights)
        self._step = step
        self._caches = caches
        self._buffers = buffers

    def run(self, sizes: StepSizes) -> None:
        """See `Forward.run`."""
        step = self._step.first_rows(sizes.num_tokens, sizes.num_seqs)
        forward(*self._arguments, step, self._caches, self._buffers.first_rows(sizes.num_tokens))
