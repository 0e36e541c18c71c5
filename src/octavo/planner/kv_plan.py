"""How many sequences a KV memory holds.

Owns: the rounding to blocks, and the memory of sequences at once. Must not know: weights, machines.

Invariants:
1. For a model that the engine runs, blocks are the engine's: its layer groups, its layout, its count of blocks for a sequence.
2. Sizes are never rounded down for a sequence and never up for the memory.
"""

from dataclasses import dataclass
from typing import Protocol

from octavo.kernels.kv_layout import KV_DTYPES, KVLayout, round_up
from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import first_visible_position, group_layers, layers_per_block
from octavo.models.spec import ModelSpec
from octavo.planner.formats import kv_format
from octavo.planner.plan_spec import AttentionKind, PlanSpec


@dataclass(frozen=True)
class KVSettings:
    """How K and V are kept.

    Attributes:
        kv_dtype: a key of `octavo.planner.formats.KV_FORMATS`.
        block_size: tokens per block.
        step_tokens: most tokens that one step computes.
        nodes: machines that divide the KV heads.
    """

    kv_dtype: str
    block_size: int
    step_tokens: int
    nodes: int = 1


class KVPlan(Protocol):
    """The KV memory's arithmetic; all sizes are bytes on each node."""

    def sequence_bytes(self, context_tokens: int) -> int:
        """Returns what one sequence holds while it decodes."""
        ...

    def max_users(self, kv_bytes: int, context_tokens: int, shared_tokens: int) -> int:
        """Returns how many sequences of this length, with a common prefix, fit at once."""
        ...

    def users_bytes(self, num_users: int, context_tokens: int, shared_tokens: int) -> int:
        """Returns what this many hold together at the most: all decode, but one that still grows."""
        ...


def make_kv_plan(spec: PlanSpec, settings: KVSettings) -> KVPlan:
    """Returns the engine's own arithmetic where the engine runs the model so, else the formulas."""
    if spec.engine_spec is not None and settings.kv_dtype in KV_DTYPES and settings.nodes == 1:
        return EngineKVPlan(spec.engine_spec, settings)
    return FormulaKVPlan(spec, settings)


class EngineKVPlan:
    """The engine's blocks."""

    def __init__(self, spec: ModelSpec, settings: KVSettings):
        self.settings = settings
        self.groups = group_layers(spec.windows)
        self.layout = KVLayout(
            settings.kv_dtype, settings.block_size, layers_per_block(self.groups), spec.num_kv_heads, spec.head_dim
        )
        self._manager = KVManager(num_blocks=0, block_size=settings.block_size, groups=self.groups)

    def sequence_bytes(self, context_tokens: int) -> int:
        return self._manager.blocks_needed(context_tokens, 1) * self.layout.block_bytes

    def num_blocks(self, kv_bytes: int) -> int:
        """Returns the blocks that the engine makes of a KV memory."""
        return kv_bytes // self.layout.block_bytes

    def max_users(self, kv_bytes: int, context_tokens: int, shared_tokens: int) -> int:
        num_blocks = self.num_blocks(kv_bytes)
        growing = self._manager.blocks_needed(context_tokens, self.settings.step_tokens)
        if growing > num_blocks:
            return 0
        decoding = max(1, self._own_blocks(context_tokens, shared_tokens))
        return 1 + max(0, num_blocks - int(self._manager.watermark_ratio * num_blocks) - growing) // decoding

    def users_bytes(self, num_users: int, context_tokens: int, shared_tokens: int) -> int:
        growing = self._manager.blocks_needed(context_tokens, self.settings.step_tokens)
        return (growing + (num_users - 1) * self._own_blocks(context_tokens, shared_tokens)) * self.layout.block_bytes

    def _own_blocks(self, context_tokens: int, shared_tokens: int) -> int:
        """Returns what a decoding sequence holds beside the whole blocks of a common prefix that its last position still sees."""
        num_whole = shared_tokens // self.settings.block_size
        first_seen = (first_visible_position(group.window, context_tokens - 1) // self.settings.block_size for group in self.groups)
        return self._manager.blocks_needed(context_tokens, 1) - sum(max(0, num_whole - first) for first in first_seen)


class FormulaKVPlan:
    """Any model's bytes, each kind of layer rounded to blocks of its own."""

    def __init__(self, spec: PlanSpec, settings: KVSettings):
        self.spec = spec
        self.settings = settings
        self.storage = kv_format(settings.kv_dtype)

    def sequence_bytes(self, context_tokens: int) -> int:
        return self._held(context_tokens, 1)

    def max_users(self, kv_bytes: int, context_tokens: int, shared_tokens: int) -> int:
        growing = self._held(context_tokens, self.settings.step_tokens)
        if growing > kv_bytes:
            return 0
        return 1 + (kv_bytes - growing) // max(1, self._own_bytes(context_tokens, shared_tokens))

    def users_bytes(self, num_users: int, context_tokens: int, shared_tokens: int) -> int:
        growing = self._held(context_tokens, self.settings.step_tokens)
        return growing + (num_users - 1) * self._own_bytes(context_tokens, shared_tokens)

    def _own_bytes(self, context_tokens: int, shared_tokens: int) -> int:
        """Returns what a decoding sequence holds beside a common prefix."""
        shared = sum(
            self._shared_tokens(kind, context_tokens, shared_tokens) * self._token_bytes(kind) for kind in self.spec.attention
        )
        return self.sequence_bytes(context_tokens) - shared

    def _held(self, context_tokens: int, step_tokens: int) -> int:
        tokens = sum(self._slots(kind, context_tokens, step_tokens) * self._token_bytes(kind) for kind in self.spec.attention)
        return tokens + -(-self.spec.state_bytes() // self.settings.nodes)

    def _slots(self, kind: AttentionKind, context_tokens: int, step_tokens: int) -> int:
        whole = round_up(context_tokens, self.settings.block_size)
        if kind.window is None:
            return whole
        span = kind.window - 1 + min(step_tokens, context_tokens)
        return min(whole, self.settings.block_size + round_up(span - 1, self.settings.block_size))

    def _shared_tokens(self, kind: AttentionKind, context_tokens: int, shared_tokens: int) -> int:
        block_size = self.settings.block_size
        first_block = first_visible_position(kind.window, context_tokens - 1) // block_size
        return max(0, shared_tokens // block_size - first_block) * block_size

    def _token_bytes(self, kind: AttentionKind) -> int:
        size = kind.bytes_per_token(self.storage)
        return size if kind.is_latent else -(-size // self.settings.nodes)
