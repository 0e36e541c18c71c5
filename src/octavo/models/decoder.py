"""The forward pass: the only one, whatever the architecture or the backend.

Owns: the order of the operations. Must not know: who fills the step's arrays, how an operation is computed.

Invariants:
1. The same calls are made for every step: an eager backend runs them on the step's rows, a recording backend keeps them.
2. What differs between architectures is read from the spec or is an absent (None) weight; no architecture is named here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.kernels.kv_layout import KVLayer
from octavo.kernels.operations import Operations
from octavo.kernels.step_arrays import StepArrays
from octavo.models.spec import ModelSpec
from octavo.models.weights import DecoderWeights, LayerWeights


@dataclass(frozen=True)
class DecoderBuffers:
    """Activations of one step, float32, one row per token.

    Attributes:
        hidden: the residual stream ``[T, hidden]``; after `forward`, the input of the final norm.
        normed: ``[T, hidden]``.
        qkv: ``[T, qkv_width]``.
        attended: ``[T, q_width]``.
        gate_up: ``[T, 2 * intermediate]``.
        activated: ``[T, intermediate]``.
        rotations: per kind of rotation ``[T, 2, rotary_dim / 2]``.
    """

    hidden: np.ndarray
    normed: np.ndarray
    qkv: np.ndarray
    attended: np.ndarray
    gate_up: np.ndarray
    activated: np.ndarray
    rotations: tuple[np.ndarray, ...]

    @staticmethod
    def allocate(spec: ModelSpec, max_tokens: int) -> "DecoderBuffers":
        """Returns buffers with room for ``max_tokens`` tokens."""

        def rows(*shape: int) -> np.ndarray:
            return np.zeros((max_tokens, *shape), np.float32)

        return DecoderBuffers(
            hidden=rows(spec.hidden_size),
            normed=rows(spec.hidden_size),
            qkv=rows(spec.qkv_width),
            attended=rows(spec.q_width),
            gate_up=rows(2 * spec.intermediate_size),
            activated=rows(spec.intermediate_size),
            rotations=tuple(rows(2, rotary.rotary_dim // 2) for rotary in spec.rotaries),
        )

    @staticmethod
    def bytes_per_token(spec: ModelSpec) -> int:
        """Returns the bytes that `allocate` takes for each token."""
        widths = 2 * spec.hidden_size + spec.qkv_width + spec.q_width + 3 * spec.intermediate_size
        return 4 * (widths + sum(rotary.rotary_dim for rotary in spec.rotaries))

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        arrays = (self.hidden, self.normed, self.qkv, self.attended, self.gate_up, self.activated, *self.rotations)
        return sum(array.nbytes for array in arrays)

    def first_rows(self, num_tokens: int) -> "DecoderBuffers":
        """Returns views of the first ``num_tokens`` rows."""
        return DecoderBuffers(
            hidden=self.hidden[:num_tokens],
            normed=self.normed[:num_tokens],
            qkv=self.qkv[:num_tokens],
            attended=self.attended[:num_tokens],
            gate_up=self.gate_up[:num_tokens],
            activated=self.activated[:num_tokens],
            rotations=tuple(rotation[:num_tokens] for rotation in self.rotations),
        )


LOGITS_BUFFER_BYTES = 32 * 2**20  # 170 rows at a vocabulary of 49,152; the head is then read once for all of them


def logits_bytes(vocab_size: int) -> int:
    """Returns the size of the logits' buffer: whole rows, at least one."""
    row_bytes = 4 * vocab_size
    return max(1, LOGITS_BUFFER_BYTES // row_bytes) * row_bytes


@dataclass(frozen=True)
class LayerCache:
    """Where one layer keeps K and V: its layer group and its place in that group's blocks."""

    group: int
    kv: KVLayer


def forward(
    ops: Operations,
    spec: ModelSpec,
    weights: DecoderWeights,
    step: StepArrays,
    caches: Sequence[LayerCache],
    buffers: DecoderBuffers,
) -> None:
    """Computes the hidden state of every token of the step into ``buffers.hidden``.

    Args:
        step: the step's rows (eager) or the full arrays (recording), as are ``buffers``.
        caches: one per layer.

    Side effects: writes the K and V of the step's tokens to their slots.
    """
    ops.embed(step.token_ids, weights.embedding, buffers.hidden, scale=spec.embedding_scale)
    for rotary, frequencies, rotation in zip(spec.rotaries, weights.inverse_frequencies, buffers.rotations, strict=True):
        ops.rotary(step.positions, frequencies, rotation, scale=rotary.scale)
    for index, (layer, cache) in enumerate(zip(weights.layers, caches, strict=True)):
        attention(ops, spec, index, layer, step, cache, buffers)
        mlp(ops, spec, layer, buffers)


def attention(
    ops: Operations,
    spec: ModelSpec,
    index: int,
    layer: LayerWeights,
    step: StepArrays,
    cache: LayerCache,
    buffers: DecoderBuffers,
) -> None:
    """Adds layer ``index``'s attention to the residual stream."""
    ops.rms_norm(buffers.hidden, layer.attention_norm, buffers.normed, eps=spec.rms_norm_eps)
    ops.linear(buffers.normed, layer.qkv, buffers.qkv, bias=layer.qkv_bias)
    ops.rope_and_store(
        buffers.qkv,
        buffers.rotations[spec.layer_rotaries[index]],
        step.slot_mapping[cache.group],
        cache.kv,
        num_q_heads=spec.num_q_heads,
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        eps=spec.rms_norm_eps,
    )
    ops.paged_attention(
        buffers.qkv,
        cache.kv,
        step,
        cache.group,
        buffers.attended,
        num_q_heads=spec.num_q_heads,
        scale=spec.query_scale,
        sliding_window=spec.windows[index],
        soft_cap=spec.attention_soft_cap,
    )
    if layer.post_attention_norm is None:
        ops.linear(buffers.attended, layer.output, buffers.hidden, bias=layer.output_bias, accumulate=True)
    else:
        ops.linear(buffers.attended, layer.output, buffers.normed, bias=layer.output_bias)
        ops.rms_norm(buffers.normed, layer.post_attention_norm, buffers.hidden, eps=spec.rms_norm_eps, accumulate=True)


def mlp(ops: Operations, spec: ModelSpec, layer: LayerWeights, buffers: DecoderBuffers) -> None:
    """Adds a layer's gated MLP to the residual stream."""
    ops.rms_norm(buffers.hidden, layer.mlp_norm, buffers.normed, eps=spec.rms_norm_eps)
    ops.linear(buffers.normed, layer.gate_up, buffers.gate_up)
    ops.gated_activation(buffers.gate_up, buffers.activated, activation=spec.activation)
    if layer.post_mlp_norm is None:
        ops.linear(buffers.activated, layer.down, buffers.hidden, accumulate=True)
    else:
        ops.linear(buffers.activated, layer.down, buffers.normed)
        ops.rms_norm(buffers.normed, layer.post_mlp_norm, buffers.hidden, eps=spec.rms_norm_eps, accumulate=True)
