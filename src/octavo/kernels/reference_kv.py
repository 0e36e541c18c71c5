"""How the reference backend writes and reads the K and V of tokens in paged storage.

Owns: the numpy views of a block as `octavo.kernels.kv_layout` lays it out, and the rounding to each KV dtype. Must not know:
attention.

Invariants:
1. Reading tokens ``[first, last)`` touches the slots of those tokens and no other.
"""

import numpy as np

from octavo.kernels.kv_layout import TOKENS_PER_GRANULE, KVLayer
from octavo.kernels.rounding import bf16_bits, bf16_values

LARGEST_FP16 = np.float32(np.finfo(np.float16).max)
ELEMENT_DTYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16, "int8": np.int8}


def write_tokens(kv: KVLayer, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    """Stores float32 k and v ``[T, num_kv_heads, head_dim]`` at ``slots`` ``[T]``; a slot of −1 stores nothing."""
    written = slots >= 0
    blocks, offsets = np.divmod(slots[written], kv.layout.block_size)
    granules, lanes = np.divmod(offsets, TOKENS_PER_GRANULE)
    k_storage, v_storage, k_scales, v_scales = layer_views(kv)
    k_encoded, k_scale = encode(k[written], kv.layout.kv_dtype)
    v_encoded, v_scale = encode(v[written], kv.layout.kv_dtype)
    rows = rows_together(kv.layout.kv_dtype)
    k_storage[blocks, :, granules, :, lanes] = k_encoded.reshape(*k_encoded.shape[:2], kv.layout.head_dim // rows, rows)
    v_storage[blocks, :, offsets // rows, :, offsets % rows] = v_encoded
    if kv.layout.kv_dtype == "int8":
        k_scales[blocks, :, offsets] = k_scale
        v_scales[blocks, :, offsets] = v_scale


def read_tokens(kv: KVLayer, block_table: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns K and V of positions ``[first, last)`` as float64 ``[num_kv_heads, last - first, head_dim]``."""
    logical, offsets = np.divmod(np.arange(first, last), kv.layout.block_size)
    blocks = block_table[logical]
    granules, lanes = np.divmod(offsets, TOKENS_PER_GRANULE)
    k_storage, v_storage, k_scales, v_scales = layer_views(kv)
    rows = rows_together(kv.layout.kv_dtype)
    k = decode(k_storage[blocks, :, granules, :, lanes], kv.layout.kv_dtype)
    k = k.reshape(len(blocks), kv.layout.num_kv_heads, kv.layout.head_dim)
    v = decode(v_storage[blocks, :, offsets // rows, :, offsets % rows], kv.layout.kv_dtype)
    if kv.layout.kv_dtype == "int8":
        k *= k_scales[blocks, :, offsets][:, :, None]
        v *= v_scales[blocks, :, offsets][:, :, None]
    return np.ascontiguousarray(k.swapaxes(0, 1)), np.ascontiguousarray(v.swapaxes(0, 1))


def rows_together(kv_dtype: str) -> int:
    """Returns how many rows of a K or V matrix lie element beside element."""
    return 2 if kv_dtype == "bf16" else 1


def layer_views(kv: KVLayer) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns views of the layer's K, V, K scales and V scales in every block; the scales are empty unless int8."""
    layout, start = kv.layout, kv.index * kv.layout.layer_bytes
    num_blocks, heads, tokens = len(kv.storage), layout.num_kv_heads, layout.block_size
    dtype = np.dtype(ELEMENT_DTYPES[layout.kv_dtype])
    num_elements = heads * tokens * layout.head_dim
    num_scales = heads * tokens if layout.kv_dtype == "int8" else 0

    def part(offset: int, count: int, kind: np.dtype) -> np.ndarray:
        return kv.storage[:, start + offset : start + offset + count * kind.itemsize].view(kind)

    k = part(0, num_elements, dtype)
    v = part(layout.part_bytes, num_elements, dtype)
    scales = [part(2 * layout.part_bytes + i * layout.scale_bytes, num_scales, np.dtype(np.float32)) for i in (0, 1)]
    granules, rows = tokens // TOKENS_PER_GRANULE, rows_together(layout.kv_dtype)
    return (
        k.reshape(num_blocks, heads, granules, layout.head_dim // rows, TOKENS_PER_GRANULE, rows),
        v.reshape(num_blocks, heads, tokens // rows, layout.head_dim, rows),
        *(scale.reshape(num_blocks, heads, tokens if num_scales else 0) for scale in scales),
    )


def encode(values: np.ndarray, kv_dtype: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns float32 ``values`` ``[T, num_kv_heads, head_dim]`` in the KV dtype, and for int8 one scale per token and head."""
    if kv_dtype == "int8":
        scale = np.abs(values).max(axis=2) / np.float32(127)
        divisor = np.where(scale == 0, np.float32(1), scale)
        with np.errstate(invalid="ignore"):  # infinity / infinity
            ratios = np.rint(values / divisor[:, :, None])
        return np.nan_to_num(ratios, nan=0.0).astype(np.int8), scale  # a scale that is no number makes all of them so
    if kv_dtype == "bf16":
        return bf16_bits(values), None
    if kv_dtype == "fp16":
        values = np.clip(values, -LARGEST_FP16, LARGEST_FP16)  # an infinite key would make the soft-max NaN
    return values.astype(ELEMENT_DTYPES[kv_dtype]), None


def decode(stored: np.ndarray, kv_dtype: str) -> np.ndarray:
    """Returns what `encode` wrote as float64, before its scale."""
    return (bf16_values(stored) if kv_dtype == "bf16" else stored).astype(np.float64)
