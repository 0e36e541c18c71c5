"""Where the K and V of a token lie inside a block.

Owns: the byte arithmetic of a block. Must not know: block ids' owners, layer groups, or any model.

A block is one contiguous run of bytes holding ``block_size`` tokens of ``num_layers`` layers. Each layer's part is K then V:

    K   [num_kv_heads, block_size / 16, head_dim, 16]   sixteen tokens side by side, so that a query's dot products with
                                                        sixteen keys are one vector operation per head dimension
    V   [num_kv_heads, block_size, head_dim]            one token's vector contiguous, so that a weighted sum streams
    int8 only: K scales then V scales, float32 [num_kv_heads, block_size] each, after V

bf16 keeps two rows of these matrices together, element beside element, so that a shift and a mask turn one load into both:

    K   [num_kv_heads, block_size / 16, head_dim / 2, 16, 2]
    V   [num_kv_heads, block_size / 2, head_dim, 2]

Invariants:
1. Every part starts at a multiple of 64 bytes from the block's start; ``block_bytes`` is a multiple of 64.
2. The layout of a token depends only on its offset in the block, never on the block's id.
"""

from dataclasses import dataclass

import numpy as np

TOKENS_PER_GRANULE = 16
KV_DTYPES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}


def round_up(value: int, multiple: int) -> int:
    """Returns the smallest multiple of ``multiple`` that is at least ``value``."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class KVLayout:
    """Sizes and offsets of one block, in bytes.

    Attributes:
        kv_dtype: a key of `KV_DTYPES`.
        block_size: tokens per block, a multiple of 16.
        num_layers: layers per block (the size of one layer group).
    """

    kv_dtype: str
    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def part_bytes(self) -> int:
        """Bytes of K (or of V) of one layer in one block."""
        elements = self.num_kv_heads * self.block_size * self.head_dim
        return round_up(elements * KV_DTYPES[self.kv_dtype], 64)

    @property
    def scale_bytes(self) -> int:
        """Bytes of the K scales (or of the V scales) of one layer in one block; 0 unless int8."""
        return round_up(self.num_kv_heads * self.block_size * 4, 64) if self.kv_dtype == "int8" else 0

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer in one block."""
        return 2 * (self.part_bytes + self.scale_bytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all its layers."""
        return self.num_layers * self.layer_bytes


@dataclass(frozen=True)
class KVLayer:
    """The KV storage of one layer, as a kernel sees it.

    Attributes:
        storage: uint8 ``[num_blocks, block_bytes]``, shared by all layers.
        layout: the block's layout.
        index: the layer's place inside its group's blocks; its bytes start at ``index * layout.layer_bytes``.
    """

    storage: np.ndarray
    layout: KVLayout
    index: int
