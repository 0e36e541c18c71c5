"""`octavo.runner.kv_storage`: memory is committed by use and given back."""

from pathlib import Path

import pytest

from octavo.kernels.kv_layout import KVLayout
from octavo.runner.kv_storage import KVStorage

LAYOUT = KVLayout("fp32", 16, 8, 4, 64)  # 256 KiB a block


def resident_bytes():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def test_blocks_are_committed_by_use_and_given_back():
    before = resident_bytes()
    storage = KVStorage(LAYOUT, 4096)  # 1 GiB of addresses
    assert resident_bytes() - before < 16 * 2**20
    storage.blocks[100:356] = 1
    assert resident_bytes() - before > 60 * 2**20
    storage.release(range(100, 356))
    assert resident_bytes() - before < 16 * 2**20
    assert not storage.blocks[200].any()


def test_only_whole_pages_of_released_blocks_go():
    layout = KVLayout("int8", 16, 1, 1, 16)
    assert layout.block_bytes % 4096
    storage = KVStorage(layout, 64)
    storage.blocks[:] = 7
    storage.release([3, 4, 5, 6, 7, 20])
    kept = [block for block in range(64) if block not in (3, 4, 5, 6, 7, 20)]
    assert (storage.blocks[kept] == 7).all()


@pytest.mark.parametrize("index", range(8))
def test_layers_share_the_storage(index):
    storage = KVStorage(LAYOUT, 2)
    assert storage.layer(index).storage is storage.blocks
