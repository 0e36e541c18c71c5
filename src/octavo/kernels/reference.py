"""The operations in plain numpy: the specification that every other backend is tested against.

Owns: the meaning of each operation, computed in float64 and rounded once to what is stored. Must not know: speed.

Invariants:
1. Each row (each query, in attention) is computed by calls whose shapes do not depend on the other rows, so a row's result
   is the same bit for bit in any batch.
2. Slots that no query of the step can see are never read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.errors import ConfigError
from octavo.kernels.host_tensor import HostTensor
from octavo.kernels.kv_layout import KVLayer
from octavo.kernels.reference_kv import read_tokens, write_tokens
from octavo.kernels.reference_sampling import draw_token, log_softmax, uniform
from octavo.kernels.rounding import bf16_bits, bf16_values
from octavo.kernels.step_arrays import StepArrays


@dataclass(frozen=True)
class ReferenceWeight:
    """A linear weight as float32 ``[out_features, in_features]``, already rounded to its format."""

    values: np.ndarray
    weight_format: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes


class ReferenceOperations:
    """`octavo.kernels.operations.Operations` in numpy, eager."""

    instruction_set = "numpy"

    def pack_weight(self, parts: Sequence[HostTensor], weight_format: str) -> ReferenceWeight:
        values = np.concatenate([part.to_float32() for part in parts])
        if weight_format == "bf16":
            values = bf16_values(bf16_bits(values))
        elif weight_format != "fp32":
            raise ConfigError(f"the reference backend has no weight format {weight_format!r}; it has 'fp32' and 'bf16'")
        return ReferenceWeight(values, weight_format)

    def embed(self, token_ids: np.ndarray, table: ReferenceWeight, out: np.ndarray, *, scale: float = 1.0) -> None:
        out[:] = table.values[token_ids] * np.float32(scale)

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, out: np.ndarray, *, eps: float, accumulate: bool = False) -> None:
        store(out, normalise(x, weight, eps), accumulate)

    def linear(
        self,
        x: np.ndarray,
        weight: ReferenceWeight,
        out: np.ndarray,
        *,
        bias: np.ndarray | None = None,
        accumulate: bool = False,
    ) -> None:
        y = matrix_product(x, weight.values)
        store(out, y if bias is None else y + bias, accumulate)

    def rotary(self, positions: np.ndarray, inverse_frequencies: np.ndarray, out: np.ndarray, *, scale: float = 1.0) -> None:
        angles = positions[:, None] * inverse_frequencies
        out[:, 0] = scale * np.cos(angles)
        out[:, 1] = scale * np.sin(angles)

    def rope_and_store(
        self,
        qkv: np.ndarray,
        rotation: np.ndarray,
        slot_mapping: np.ndarray,
        kv: KVLayer,
        *,
        num_q_heads: int,
        q_norm: np.ndarray | None = None,
        k_norm: np.ndarray | None = None,
        eps: float = 0.0,
    ) -> None:
        heads = qkv.reshape(len(qkv), -1, kv.layout.head_dim)
        q, k, v = np.split(heads, [num_q_heads, num_q_heads + kv.layout.num_kv_heads], axis=1)
        q[:] = rotate(q if q_norm is None else normalise(q, q_norm, eps), rotation)
        k = rotate(k if k_norm is None else normalise(k, k_norm, eps), rotation).astype(np.float32)
        write_tokens(kv, slot_mapping, k, v)

    def paged_attention(
        self,
        qkv: np.ndarray,
        kv: KVLayer,
        step: StepArrays,
        group: int,
        out: np.ndarray,
        *,
        num_q_heads: int,
        scale: float,
        sliding_window: int | None = None,
        soft_cap: float = 0.0,
        sinks: np.ndarray | None = None,
    ) -> None:
        num_kv_heads, head_dim = kv.layout.num_kv_heads, kv.layout.head_dim
        queries = qkv[:, : num_q_heads * head_dim].reshape(len(qkv), num_kv_heads, -1, head_dim)
        results = out.reshape(queries.shape)
        sink_logits = None if sinks is None else sinks.reshape(num_kv_heads, -1)
        for sequence, context_len in enumerate(step.context_lens):
            rows = range(step.cu_seqlens_q[sequence], step.cu_seqlens_q[sequence + 1])
            block_table = step.block_tables[group, step.table_rows[sequence]]
            for row, position in zip(rows, range(context_len - len(rows), context_len), strict=True):
                first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
                keys, values = read_tokens(kv, block_table, first, position + 1)
                results[row] = attend(queries[row], keys, values, scale, soft_cap, sink_logits)

    def gated_activation(self, gate_up: np.ndarray, out: np.ndarray, *, activation: str) -> None:
        gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
        out[:] = ACTIVATIONS[activation](gate) * up

    def logits(
        self,
        hidden: np.ndarray,
        rows: np.ndarray,
        norm_weight: np.ndarray,
        head: ReferenceWeight,
        out: np.ndarray,
        *,
        eps: float,
        soft_cap: float = 0.0,
    ) -> None:
        normed = normalise(hidden[rows], norm_weight, eps).astype(np.float32)
        out[:] = capped(matrix_product(normed, head.values), soft_cap)

    def copy_blocks(self, storage: np.ndarray, pairs: np.ndarray) -> None:
        storage[pairs[:, 1]] = storage[pairs[:, 0]]

    def adjust_logits(
        self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray, repetition: np.ndarray, additive: np.ndarray
    ) -> None:
        z = logits[rows, token_ids]
        logits[rows, token_ids] = np.where(z > 0, z / repetition, z * repetition) + additive

    def mask_logits(self, logits: np.ndarray, rows: np.ndarray, bitmasks: np.ndarray) -> None:
        bits = np.unpackbits(bitmasks.astype("<i4", copy=False).view(np.uint8), axis=1, bitorder="little")
        for row, allowed in zip(rows, bits[:, : logits.shape[1]], strict=True):
            logits[row, allowed == 0] = -np.inf

    def sample(self, logits: np.ndarray, rows: np.ndarray, parameters: np.ndarray, keys: np.ndarray, out: np.ndarray) -> None:
        for index, row in enumerate(rows):
            draw = uniform(*(int(word) for word in keys[index]))
            out[index] = draw_token(logits[row], parameters[index], draw)

    def logprobs(
        self, logits: np.ndarray, rows: np.ndarray, chosen: np.ndarray, top_ids: np.ndarray, top_logprobs: np.ndarray
    ) -> None:
        for index, row in enumerate(rows):
            best = np.argsort(-logits[row], kind="stable")[: top_ids.shape[1] - 1]
            top_ids[index] = np.append(chosen[index], best)
            top_logprobs[index] = log_softmax(logits[row])[top_ids[index]]

    def chosen_ranks(self, logits: np.ndarray, rows: np.ndarray, chosen: np.ndarray, out: np.ndarray) -> None:
        out[:] = 1 + (logits[rows] > logits[rows, chosen][:, None]).sum(axis=1)


def store(out: np.ndarray, y: np.ndarray, accumulate: bool) -> None:
    """Writes or adds ``y`` to ``out``; a sum is formed in float64 and rounded once."""
    out[:] = out + y if accumulate else y


def normalise(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Returns the float64 RMSNorm of ``x`` over its last axis."""
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def matrix_product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Returns ``x @ weight.T`` in float64, one row at a time: a product of all rows may sum in another order for each batch."""
    weight = weight.astype(np.float64)
    y = np.empty((len(x), len(weight)))
    for row, inputs in enumerate(x.astype(np.float64)):
        y[row] = weight @ inputs
    return y


def rotate(heads: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """Returns ``heads`` ``[T, num_heads, head_dim]`` rotated in halves, float64; elements past the rotary ones are copied."""
    half = rotation.shape[-1]
    cos, sin = rotation[:, None, 0].astype(np.float64), rotation[:, None, 1].astype(np.float64)
    first, second = heads[..., :half], heads[..., half : 2 * half]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, heads[..., 2 * half :]], axis=-1)


def attend(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    scale: float,
    soft_cap: float,
    sinks: np.ndarray | None,
) -> np.ndarray:
    """Returns one token's attention, float64, in the shape of ``queries``.

    Args:
        queries: ``[num_kv_heads, group_size, head_dim]``.
        keys, values: what the token sees, float64 ``[num_kv_heads, num_visible, head_dim]``.
        sinks: ``[num_kv_heads, group_size]`` or None.
    """
    scores = capped(queries.astype(np.float64) @ keys.swapaxes(1, 2) * scale, soft_cap)
    highest = scores.max(axis=2, keepdims=True)
    if sinks is not None:
        highest = np.maximum(highest, sinks[:, :, None])
    weights = np.exp(scores - highest)
    total = weights.sum(axis=2, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks[:, :, None] - highest)
    return weights @ values / total


def capped(scores: np.ndarray, soft_cap: float) -> np.ndarray:
    """Returns ``soft_cap * tanh(scores / soft_cap)``, or the scores themselves when the cap is 0."""
    return soft_cap * np.tanh(scores / soft_cap) if soft_cap else scores


def silu(x: np.ndarray) -> np.ndarray:
    """Returns ``x / (1 + exp(-x))``, written so that no exponential overflows."""
    return x * np.exp(-np.logaddexp(0.0, -x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Returns the tanh form of GELU."""
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}
