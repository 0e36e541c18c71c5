"""Puts a disk tier together.

Owns: where a model's file is, and what an earlier process left in it. Must not know: how blocks come and go.
"""

import logging
from pathlib import Path

import numpy as np

from octavo.errors import ConfigError
from octavo.memory.kv_manager import KVManager
from octavo.memory.tier_index import BlockName, TierIndex
from octavo.tiers.block_file import BlockFile
from octavo.tiers.block_io import BlockIO
from octavo.tiers.costs import guessed_costs
from octavo.tiers.disk_tier import DiskTier
from octavo.tiers.fingerprint import Fingerprint
from octavo.tiers.record import record_bytes

logger = logging.getLogger("octavo.tiers")


def open_disk_tier(
    directory: Path, size_bytes: int, kv: KVManager, blocks: np.ndarray, fingerprint: Fingerprint
) -> DiskTier | None:
    """Returns a tier over the model's file in ``directory``; None, with a line in the log, if the disk does not let us.

    Args:
        size_bytes: most bytes of the file.
        blocks: uint8 ``[num_blocks, block_bytes]``, the pool's storage.

    Raises:
        ConfigError: ``size_bytes`` has no room for a block of each layer group.
    """
    block_bytes = blocks.shape[1]
    num_slots = size_bytes // record_bytes(block_bytes)
    if num_slots < len(kv.groups):
        raise ConfigError(
            f"disk_cache_size is {size_bytes} bytes; one block of each layer group takes "
            f"{len(kv.groups) * record_bytes(block_bytes)}"
        )
    path = directory / f"{fingerprint.digest.hex()[:16]}.blocks"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = BlockFile(path, block_bytes=block_bytes, num_slots=num_slots, fingerprint=fingerprint.digest)
        index, next_stamp = read_index(file)
    except OSError as cause:
        logger.error("there is no disk cache: %s: %s", path, cause)
        return None
    io = BlockIO(file, blocks, first_stamp=next_stamp)
    logger.info("disk cache %s: %d of %d blocks in use", path, len(index), num_slots)
    return DiskTier(kv, io, index, guessed_costs(block_bytes), block_bytes=block_bytes)


def read_index(file: BlockFile) -> tuple[TierIndex, int]:
    """Returns the index of what is in a file, and the stamp of the next record to be written."""
    found: list[tuple[int, int, BlockName, tuple[int, ...]]] = [
        (header.stamp, slot, (header.key, header.group), header.token_ids) for slot, header in file.scan()
    ]
    found.sort()
    index = TierIndex(file.num_slots)
    index.load({slot: (name, token_ids) for _, slot, name, token_ids in found})
    return index, found[-1][0] + 1 if found else 0
