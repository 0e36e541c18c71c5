"""The KV memories that can be simulated, by name.

Owns: how many blocks or slots a number of bytes holds. Must not know: who runs on them.
"""

from octavo.errors import ConfigError
from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import group_layers, layers_per_block
from octavo.simulator.replica import Memory
from octavo.simulator.reserving_memory import RESERVING, reserving_memory
from octavo.simulator.step_time import ModelCosts

PAGED = "paged"
MAX_BLOCKS = 2**22  # each is a record of the books: half a gigabyte of them
ALLOCATORS = (PAGED, *RESERVING)


def make_memory(
    allocator: str, model: ModelCosts, *, kv_bytes: int, block_size: int, max_model_len: int, prefix_caching: bool
) -> Memory:
    """Returns an empty KV memory of ``kv_bytes``.

    Args:
        allocator: one of `ALLOCATORS`.
        block_size, prefix_caching: of the paged memory; the others have neither.

    Raises:
        ConfigError: the bytes hold no block, or not one sequence of ``max_model_len`` tokens where that much is reserved.
    """
    if allocator != PAGED:
        return reserving_memory(allocator, kv_bytes // model.kv_bytes_per_token, max_model_len)
    groups = group_layers(model.windows)
    block_bytes = model.layer_kv_bytes * layers_per_block(groups) * block_size
    num_blocks = kv_bytes // block_bytes
    if num_blocks < len(groups):
        raise ConfigError(f"{kv_bytes} bytes hold {num_blocks} KV blocks of {block_bytes} bytes", hint="give more memory")
    if num_blocks > MAX_BLOCKS:
        raise ConfigError(f"{num_blocks} KV blocks are more than the {MAX_BLOCKS} that can be simulated", hint="give less memory")
    return KVManager(num_blocks=num_blocks, block_size=block_size, groups=groups, enable_prefix_caching=prefix_caching)
