"""The byte arithmetic of a block."""

import numpy as np
import pytest

from kernels.paged_case import Shape, poisoned_layer
from octavo.kernels.kv_layout import KV_DTYPES, KVLayout
from octavo.kernels.reference_kv import layer_views


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("block_size", [16, 128])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 16), (3, 64), (5, 80)])
def test_parts_are_aligned_and_hold_their_elements(kv_dtype, block_size, num_kv_heads, head_dim):
    layout = KVLayout(kv_dtype, block_size, 4, num_kv_heads, head_dim)
    elements = num_kv_heads * block_size * head_dim
    assert layout.part_bytes % 64 == layout.scale_bytes % 64 == layout.block_bytes % 64 == 0
    assert elements * KV_DTYPES[kv_dtype] <= layout.part_bytes < elements * KV_DTYPES[kv_dtype] + 64
    assert (layout.scale_bytes > 0) == (kv_dtype == "int8")
    assert layout.block_bytes == 4 * 2 * (layout.part_bytes + layout.scale_bytes)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_parts_of_a_layer_do_not_overlap_each_other_or_other_layers(kv_dtype):
    kv = poisoned_layer(Shape(kv_dtype, 3, 3, 80), 32, 2, 0.0)
    kv.storage[:] = 0
    for view in layer_views(kv):
        assert not view.any()
        view[:] = 1
    layer_bytes = kv.layout.layer_bytes
    assert not kv.storage[:, : kv.index * layer_bytes].any()
    assert np.count_nonzero(kv.storage) > 0
