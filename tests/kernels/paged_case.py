"""Paged attention problems for tests: random K and V of some sequences, laid into blocks in any way that is asked for.

What the numbers are depends only on the generator and the lengths; block size, placement and poison are put on top.
"""

from dataclasses import dataclass

import numpy as np

from octavo.kernels.kv_layout import KVLayer, KVLayout
from octavo.kernels.operations import Operations
from octavo.kernels.reference_kv import layer_views, write_tokens
from octavo.kernels.step_arrays import StepArrays

LAYER = 1  # of two: a kernel that ignores the layer's offset reads poison


@dataclass(frozen=True)
class Shape:
    """Heads and sizes of one attention layer."""

    kv_dtype: str = "bf16"
    num_q_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64

    @property
    def qkv_width(self) -> int:
        """Columns of a qkv row."""
        return (self.num_q_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True)
class Sequence:
    """One sequence's values: qkv rows of all its positions, K and V after rotation."""

    qkv: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @staticmethod
    def random(rng: np.random.Generator, shape: Shape, length: int) -> "Sequence":
        """Returns ``length`` positions; V has a mean, so that missing or doubled tokens show."""
        kv_shape = (length, shape.num_kv_heads, shape.head_dim)
        return Sequence(
            qkv=rng.standard_normal((length, shape.qkv_width)).astype(np.float32),
            k=rng.standard_normal(kv_shape).astype(np.float32),
            v=(rng.standard_normal(kv_shape) + 0.5).astype(np.float32),
        )


@dataclass(frozen=True)
class Span:
    """Which queries of a sequence a step holds: positions ``first .. last``; nothing from ``last`` on is stored yet."""

    sequence: Sequence
    first: int
    last: int


def poisoned_layer(shape: Shape, block_size: int, num_blocks: int, poison: float) -> KVLayer:
    """Returns a layer of a storage in which every element is ``poison`` (int8: every scale is)."""
    layout = KVLayout(shape.kv_dtype, block_size, LAYER + 1, shape.num_kv_heads, shape.head_dim)
    kv = KVLayer(np.full((num_blocks, layout.block_bytes), 0x55, np.uint8), layout, LAYER)
    k, v, k_scales, v_scales = layer_views(kv)
    if shape.kv_dtype == "int8":
        k_scales[:], v_scales[:] = poison, poison
    elif shape.kv_dtype == "bf16":
        k[:] = v[:] = np.float32(poison).view(np.uint32) >> 16
    else:
        with np.errstate(over="ignore"):
            k[:] = v[:] = np.full(1, poison).astype(k.dtype)
    return kv


def make_step(shape: Shape, spans: list[Span], *, block_size: int = 16, placement_seed: int | None = None, poison: float = np.nan):
    """Returns ``(qkv, kv, step)`` of a step that holds the spans.

    Args:
        placement_seed: shuffles the blocks; None lays them out in order.
        poison: what every slot holds that is not a position below its span's ``last``.
    """
    num_blocks = [-(-span.last // block_size) for span in spans]
    ids = np.arange(sum(num_blocks), dtype=np.int32)
    if placement_seed is not None:
        np.random.default_rng(placement_seed).shuffle(ids)
    kv = poisoned_layer(shape, block_size, len(ids), poison)
    tables = np.full((1, len(spans), max(num_blocks)), -1, np.int32)
    for row, (span, blocks) in enumerate(zip(spans, np.split(ids, np.cumsum(num_blocks)[:-1]), strict=True)):
        tables[0, row, : len(blocks)] = blocks
        positions = np.arange(span.last)
        slots = blocks[positions // block_size].astype(np.int64) * block_size + positions % block_size
        write_tokens(kv, slots, span.sequence.k[: span.last], span.sequence.v[: span.last])
    cu_seqlens_q = np.cumsum([0] + [span.last - span.first for span in spans]).astype(np.int32)
    unused = np.zeros(cu_seqlens_q[-1], np.int32)
    step = StepArrays(
        token_ids=unused,
        positions=unused,
        slot_mapping=unused[None].astype(np.int64),
        block_tables=tables,
        table_rows=np.arange(len(spans), dtype=np.int32),
        context_lens=np.array([span.last for span in spans], np.int32),
        cu_seqlens_q=cu_seqlens_q,
    )
    return np.concatenate([span.sequence.qkv[span.first : span.last] for span in spans]), kv, step


def attend(operations: Operations, shape: Shape, spans: list[Span], *, options: dict | None = None, **placement) -> np.ndarray:
    """Returns the attention of a step; the output starts as NaN, so that a row left out shows."""
    qkv, kv, step = make_step(shape, spans, **placement)
    out = np.full((len(qkv), shape.num_q_heads * shape.head_dim), np.nan, np.float32)
    settings = {"scale": shape.head_dim**-0.5} | (options or {})
    operations.paged_attention(qkv, kv, step, 0, out, num_q_heads=shape.num_q_heads, **settings)
    return out
