"""The operations that a forward pass is written in: one signature each, whatever the backend.

Owns: the signatures. Must not know: models, sequences, blocks' owners.

Activations are float32, row-major, one row per token of the step. ``out`` is written in place and returned by nobody. An
eager backend works on exactly the rows that it is given; a recording backend (`octavo.kernels.cpu.CpuProgram`) is given buffers
with room for the largest step and reads the number of rows when the program runs.

Invariants:
1. A row's result depends on that row's inputs alone, bit for bit: not on the number of rows, nor on the number of threads.
2. Every output element is reduced in one order that depends only on the reduction's length.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from octavo.kernels.host_tensor import HostTensor
from octavo.kernels.kv_layout import KVLayer
from octavo.kernels.step_arrays import StepArrays


class PackedWeight(Protocol):
    """A linear weight in the layout that a backend streams; opaque to everybody but that backend."""

    shape: tuple[int, int]  # (out_features, in_features)
    weight_format: str  # "fp32", "bf16", "int8" or "int4"
    num_bytes: int


class Operations(Protocol):
    """What `octavo.models.decoder` may call. ``T`` is the number of tokens of the step.

    Attributes:
        instruction_set: what it computes with; results are equal bit for bit only within one.
    """

    instruction_set: str

    def pack_weight(self, parts: Sequence[HostTensor], weight_format: str) -> PackedWeight:
        """Packs ``parts``, stacked along their output features, into one weight.

        Args:
            parts: tensors of equal ``in_features``, e.g. the q, k and v projections.
            weight_format: "fp32", "bf16", "int8" or "int4".
        """
        ...

    def embed(self, token_ids: np.ndarray, table: PackedWeight, out: np.ndarray, *, scale: float = 1.0) -> None:
        """``out[t] = scale * table[token_ids[t]]``; token_ids int32 ``[T]``, out ``[T, hidden]``."""
        ...

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, out: np.ndarray, *, eps: float, accumulate: bool = False) -> None:
        """``y = x * rsqrt(mean(x²) + eps) * weight``; then ``out = y``, or ``out += y`` when accumulating.

        ``weight`` is float32 ``[hidden]`` and already holds ``1 + w`` where a model stores ``w``.
        """
        ...

    def linear(
        self, x: np.ndarray, weight: PackedWeight, out: np.ndarray, *, bias: np.ndarray | None = None, accumulate: bool = False
    ) -> None:
        """``y = x @ weight.T + bias``; then ``out = y``, or ``out += y``. x ``[T, in]``, out ``[T, out]``, bias ``[out]``."""
        ...

    def rotary(self, positions: np.ndarray, inverse_frequencies: np.ndarray, out: np.ndarray, *, scale: float = 1.0) -> None:
        """``out[t, 0] = scale * cos(positions[t] * f)``, ``out[t, 1] = scale * sin(positions[t] * f)``.

        positions int32 ``[T]``, inverse_frequencies float64 ``[rotary_dim / 2]``, out ``[T, 2, rotary_dim / 2]``; the angle is
        computed in float64.
        """
        ...

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
        """Normalises (optionally) and rotates the heads of q and k, keeps q in ``qkv``, writes k and v to their slots.

        Head ``h`` of a row is rotated in halves (NeoX): with ``d = rotary_dim / 2``, elements ``i`` and ``i + d`` are a pair;
        elements from ``rotary_dim`` on pass unchanged. The norm, where given, is an RMSNorm over each head, before the rotation.

        Args:
            qkv: ``[T, (num_q_heads + 2 * num_kv_heads) * head_dim]``; its q part is rotated in place.
            rotation: what `rotary` wrote, ``[T, 2, rotary_dim / 2]``.
            slot_mapping: int64 ``[T]``: ``block_id * block_size + offset``; −1 writes nothing.
            q_norm: ``[head_dim]`` or None; k_norm likewise.
        """
        ...

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
        """Causal grouped-query attention of the step's queries over each sequence's blocks.

        For sequence ``s`` the step holds rows ``cu_seqlens_q[s] .. cu_seqlens_q[s+1]``, which are the last positions of a context
        of ``context_lens[s]`` tokens (their own K/V already stored). A query at position ``p`` sees positions
        ``max(0, p - sliding_window + 1) .. p``. ``soft_cap`` > 0 maps a score to ``cap * tanh(score / cap)``. ``sinks``, float32
        ``[num_q_heads]``, adds ``exp(sink)`` to the soft-max's denominator only. Softmax is over fixed tiles of tokens,
        aligned to absolute positions, merged in order.

        Args:
            qkv: as left by `rope_and_store`; only its q part is read.
            step: its block_tables[group], table_rows, context_lens and cu_seqlens_q are read.
            out: ``[T, num_q_heads * head_dim]``.
        """
        ...

    def gated_activation(self, gate_up: np.ndarray, out: np.ndarray, *, activation: str) -> None:
        """``out = act(gate) * up`` with gate_up ``[T, 2 * n]`` = gate then up; activation "silu" or "gelu_tanh"."""
        ...

    def logits(
        self,
        hidden: np.ndarray,
        rows: np.ndarray,
        norm_weight: np.ndarray,
        head: PackedWeight,
        out: np.ndarray,
        *,
        eps: float,
        soft_cap: float = 0.0,
    ) -> None:
        """``out[r] = soft_cap(rms_norm(hidden[rows[r]]) @ head.T)``; rows int32 ``[R]``, out ``[R, vocab]``. Always eager."""
        ...

    def copy_blocks(self, storage: np.ndarray, pairs: np.ndarray) -> None:
        """Copies block ``pairs[i, 0]`` onto block ``pairs[i, 1]``.

        pairs int64 ``[n, 2]``, storage uint8 ``[num_blocks, block_bytes]``. Sources and destinations are disjoint. Always eager.
        """
        ...

    def adjust_logits(
        self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray, repetition: np.ndarray, additive: np.ndarray
    ) -> None:
        """For each entry i, with ``z = logits[rows[i], token_ids[i]]``: divides z by ``repetition[i]`` if it is positive, else
        multiplies; then adds ``additive[i]``.

        rows, token_ids int32 ``[n]``; repetition, additive float32 ``[n]``; a pair (row, token) occurs at most once. In place.
        """
        ...

    def mask_logits(self, logits: np.ndarray, rows: np.ndarray, bitmasks: np.ndarray) -> None:
        """Sets to −inf every token of ``logits[rows[i]]`` whose bit in ``bitmasks[i]`` (int32 ``[n, ceil(vocab / 32)]``) is 0."""
        ...

    def sample(
        self,
        logits: np.ndarray,
        rows: np.ndarray,
        parameters: np.ndarray,
        keys: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Draws one token per entry i from ``logits[rows[i]]``.

        temperature 0 takes the highest logit, ties to the lowest id. Otherwise: divide by the temperature; keep the top_k
        highest (0 = all; ties to the lowest ids); soft-max; drop tokens below ``min_p`` times the highest probability; keep the
        smallest set of the most probable tokens whose share of what is left reaches ``top_p`` (ties to the lowest ids). With
        ``u`` the draw, the result is the first token, in order of ids, at which the cumulative sum of what is left exceeds ``u``
        times its total.

        ``u = ((word1 << 32 | word0) >> 11) * 2**-53`` with word0 and word1 the first two words of Philox4x32-10, whose key is
        (seed low, seed high) and whose counter is (position low, position high, choice low, choice high), in 32-bit words.

        Args:
            rows: int32 ``[n]``; a row may occur more than once.
            parameters: float32 ``[n, 4]``: temperature, top_k, top_p, min_p.
            keys: uint64 ``[n, 3]``: seed, index of the choice, token position. The draw is Philox4x32-10 of these alone.
            out: int32 ``[n]``.
        """
        ...

    def logprobs(
        self, logits: np.ndarray, rows: np.ndarray, chosen: np.ndarray, top_ids: np.ndarray, top_logprobs: np.ndarray
    ) -> None:
        """Log-probabilities under the raw distribution of ``logits[rows[i]]``.

        Args:
            rows, chosen: int32 ``[n]``.
            top_ids: int32 ``[n, 1 + k]``, written: the chosen id, then the k most probable ids, best first, ties to the lowest id.
            top_logprobs: float32 ``[n, 1 + k]``, written: their log-probabilities.
        """
        ...

    def chosen_ranks(self, logits: np.ndarray, rows: np.ndarray, chosen: np.ndarray, out: np.ndarray) -> None:
        """``out[i]`` = 1 + number of tokens with a higher logit than ``chosen[i]`` in ``logits[rows[i]]``; int32 ``[n]``."""
        ...
