"""What the memory knows of one sequence.

Owns: the sequence's block tables and its place in the prefix tree. Must not know: the sequence's tokens or who schedules it.
Changed by `KVManager` only; the scheduler counts computed tokens as long as blocks do not change.

Invariants:
1. All tables have the same length and cover at least ``num_computed_tokens`` positions.
2. Slots of positions ``[num_computed_tokens, num_writable_tokens)`` belong to this sequence alone.
"""

from collections.abc import Hashable, Sequence

from octavo.memory.block_table import BlockTable
from octavo.memory.claims import Retention
from octavo.memory.prefix_tree import PrefixNode


class SequenceCache:
    """The KV cache of one sequence.

    Attributes:
        namespace: the root under which the sequence's blocks are shared.
        num_prompt_tokens: tokens known when the sequence was opened; its last, partial block is shared once they are computed.
        num_query_tokens: tokens looked up in the prefix cache and not yet counted in the statistics.
        num_hit_tokens: tokens that came from the prefix cache.
        num_computed_tokens: tokens whose K/V is in memory.
        num_writable_tokens: see invariant 2.
        num_mirrored_blocks: entries of each table that a mirror of the tables has.
        next_commit_tokens: number of computed tokens at which blocks change; below it, they need only be counted.
        tables: one per layer group.
        node: the deepest node on the sequence's path, ``num_registered_blocks`` below the root; None = not looked up yet.
        announced: nodes that this sequence said it would compute.
        retentions: what is asked for its blocks when it ends.
        registers: False when the sequence's blocks must not be shared through the tree.
    """

    __slots__ = (
        "announced",
        "namespace",
        "next_commit_tokens",
        "node",
        "num_computed_tokens",
        "num_hit_tokens",
        "num_mirrored_blocks",
        "num_prompt_tokens",
        "num_query_tokens",
        "num_registered_blocks",
        "num_writable_tokens",
        "registers",
        "retentions",
        "tables",
    )

    def __init__(self, namespace: Hashable, num_prompt_tokens: int, tables: tuple[BlockTable, ...], *, registers: bool):
        self.namespace = namespace
        self.num_prompt_tokens = num_prompt_tokens
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self.num_computed_tokens = 0
        self.num_writable_tokens = 0
        self.num_mirrored_blocks = 0
        self.next_commit_tokens = 0
        self.tables = tables
        self.node: PrefixNode | None = None
        self.num_registered_blocks = 0
        self.announced: list[PrefixNode] = []
        self.registers = registers
        self.retentions: Sequence[Retention] = ()

    @property
    def table_length(self) -> int:
        """Entries of each table, those that left the window included."""
        return len(self.tables[0].block_ids)

    def drain_changes(self) -> range:
        """Returns the entries of the tables that a mirror must write since the last call.

        Blocks that left a window are not among them: no query sees them.
        """
        first, self.num_mirrored_blocks = self.num_mirrored_blocks, len(self.tables[0].block_ids)
        return range(first, self.num_mirrored_blocks)

    @property
    def num_blocks(self) -> int:
        """Blocks that the sequence holds, over all groups."""
        return sum(len(table.block_ids) - table.first_held for table in self.tables)

    def held_blocks(self) -> list[int]:
        """Returns every block id that the sequence holds, over all groups, deepest last."""
        first_held = min(table.first_held for table in self.tables)
        return [
            table.block_ids[index]
            for index in range(first_held, self.table_length)
            for table in self.tables
            if index >= table.first_held
        ]
