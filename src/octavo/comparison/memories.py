"""The KV memories that are compared, by name: two that reserve contiguous runs, and paging without and with sharing.

Owns: what each one is. Must not know: models, or how long anything takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from octavo.config import EngineConfig
from octavo.engine.loading import KVSizes, paged_memory
from octavo.memory.kv_manager import KVManager
from octavo.memory.reservation_policies import Policy, reserve_maximum, reserve_power_of_two
from octavo.memory.reserving_manager import ReservingManager

FinalLength = Callable[[Sequence[int]], int]


@dataclass(frozen=True)
class MemoryKind:
    """One way to give KV memory to sequences.

    Attributes:
        policy: how much is reserved; None = paged.
        shares: whether equal beginnings are stored once.
    """

    name: str
    description: str
    policy: Policy | None
    shares: bool = False


MEMORY_KINDS = (
    MemoryKind("contiguous, maximum", "one run of slots each, for the longest sequence allowed", reserve_maximum),
    MemoryKind(
        "contiguous, power of two",
        "one run of slots each, for the prompt and the next power of two of the answer",
        reserve_power_of_two,
    ),
    MemoryKind("paged", "blocks as tokens come; nothing shared", None),
    MemoryKind("paged, shared", "blocks as tokens come; equal beginnings stored once", None, shares=True),
)


def make_memory(kind: MemoryKind, config: EngineConfig, sizes: KVSizes, final_length: FinalLength) -> KVManager:
    """Returns an empty KV memory of this kind.

    Args:
        final_length: of the sequence with a prompt, for the kinds that reserve.
    """
    if kind.policy is None:
        return paged_memory(replace(config, enable_prefix_caching=kind.shares), sizes)
    return ReservingManager(
        num_blocks=sizes.num_blocks,
        block_size=config.block_size,
        groups=sizes.groups,
        policy=kind.policy,
        final_length=final_length,
        max_model_len=sizes.max_model_len,
    )
