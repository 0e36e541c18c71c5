"""A brute-force model of physical KV slots, driven beside a `KVManager`.

It plays the forward pass: it knows which (generation, namespace, token prefix) the K/V in every physical slot stands for,
copies and overwrites slots as a runner would, and checks that every slot a query may see holds exactly what the sequence's
tokens say.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from octavo.memory.block_table import NO_BLOCK
from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import first_visible_position, group_layers
from octavo.memory.sequence_cache import SequenceCache

FULL = group_layers([None])
Content = tuple[int, Hashable, tuple[int, ...]]


@dataclass(eq=False)
class ModelSequence:
    """A sequence of the workload: its tokens and its cache."""

    token_ids: list[int]
    namespace: Hashable
    cache: SequenceCache
    generation: int
    mirrors: list[list[int]] = field(default_factory=list)


@dataclass(eq=False)
class HeldPrefix:
    """A prefix that is kept as it is: what its blocks held when it was taken."""

    cache: SequenceCache
    token_ids: list[int]
    slots: dict[tuple[int, int], Content | None]


def content_at(sequence: ModelSequence, position: int) -> Content:
    """What the K/V at a position of the sequence depends on."""
    return sequence.generation, sequence.namespace, tuple(sequence.token_ids[: position + 1])


class MemoryOracle:
    """Drives a manager step by step and verifies every slot."""

    def __init__(self, manager: KVManager):
        self.manager = manager
        self.generation = 0  # grows with every reset of the prefix cache
        self.slots: dict[tuple[int, int], Content] = {}  # (block, offset) -> what was computed there
        self.sequences: list[ModelSequence] = []
        self.held: list[HeldPrefix] = []
        self.scheduled: dict[ModelSequence, int] = {}  # sequence -> number of computed tokens after the step

    def open(self, token_ids: Sequence[int], namespace: Hashable, *, reuse: bool = True) -> ModelSequence:
        match = self.manager.match(token_ids, namespace) if reuse else None
        return self.open_with(token_ids, namespace, match)

    def open_with(self, token_ids, namespace, match) -> ModelSequence:
        cache = self.manager.open(token_ids, namespace, match)
        assert cache.num_computed_tokens <= max(len(token_ids) - 1, 0)
        sequence = ModelSequence(list(token_ids), namespace, cache, self.generation, [[] for _ in cache.tables])
        self.sequences.append(sequence)
        return sequence

    def schedule(self, sequence: ModelSequence, num_tokens: int) -> bool:
        """Grants the sequence ``num_tokens`` more tokens in this step, if there are blocks."""
        before = self._snapshot()
        target = min(sequence.cache.num_computed_tokens + num_tokens, len(sequence.token_ids))
        if not self.manager.allocate(sequence.cache, target):
            assert self._snapshot() == before, "a refused allocation changed something"
            return False
        self.scheduled[sequence] = target
        return True

    def run_step(self) -> None:
        """Copies, computes and commits what was scheduled."""
        self._copy()
        for block_id in self.manager.drain_released():
            for offset in range(self.manager.block_size):
                self._put(block_id, offset, None)
        self._write()
        for sequence, target in self.scheduled.items():
            self._verify_visible(sequence, target)
            self.manager.commit(sequence.cache, sequence.token_ids, target)
        self.scheduled.clear()

    def _copy(self) -> None:
        copies = self.manager.drain_copies()
        sources, destinations = {pair[0] for pair in copies}, [pair[1] for pair in copies]
        assert not sources & set(destinations) and len(destinations) == len(set(destinations))
        for source, destination in copies:
            for offset in range(self.manager.block_size):
                self._put(destination, offset, self.slots.get((source, offset)))

    def fork(self, sequence: ModelSequence) -> ModelSequence:
        cache = self.manager.fork(sequence.cache)
        token_ids = sequence.token_ids[: max(cache.num_computed_tokens, 1)]
        child = ModelSequence(token_ids, sequence.namespace, cache, sequence.generation, [[] for _ in cache.tables])
        self.sequences.append(child)
        return child

    def free(self, sequence: ModelSequence) -> None:
        self.scheduled.pop(sequence, None)
        self.sequences.remove(sequence)
        self.manager.free(sequence.cache, sequence.token_ids)

    def hold(self, token_ids: Sequence[int], namespace: Hashable) -> None:
        """Keeps what is computed of a token run, as a session does that is written; call it between steps."""
        assert not self.scheduled
        self._copy()
        tokens = list(token_ids)
        match = self.manager.match([*tokens, 0], namespace)
        tokens = tokens[: match.num_tokens]
        cache, blocks = self.manager.restorer.hold(tokens, namespace, match)
        slots = [(block_id, offset) for block_id in blocks.values() for offset in range(self.manager.block_size)]
        self.held.append(HeldPrefix(cache, tokens, {slot: self.slots.get(slot) for slot in slots}))

    def let_go(self, held: HeldPrefix) -> None:
        self.held.remove(held)
        self.manager.free(held.cache, held.token_ids)

    def reset(self) -> None:
        self.manager.reset_prefix_cache()
        self.generation += 1

    def check(self) -> None:
        self.manager.check_invariants()
        stats = self.manager.stats()
        assert stats.num_free_blocks + stats.num_cached_blocks + stats.num_used_blocks == stats.num_blocks
        assert self.manager.num_free_blocks == stats.num_free_blocks + stats.num_cached_blocks
        if not self.sequences and not self.held:
            assert stats.num_used_blocks == 0
        for held in self.held:
            for slot, content in held.slots.items():
                assert self.slots.get(slot) == content, f"slot {slot} of a held prefix was written to"

    def _write(self) -> None:
        written: set[tuple[int, int]] = set()
        for sequence, target in self.scheduled.items():
            for position in range(sequence.cache.num_computed_tokens, target):
                index, offset = divmod(position, self.manager.block_size)
                for table in sequence.cache.tables:
                    slot = (table.block_ids[index], offset)
                    assert slot not in written, f"slot {slot} has two writers in one step"
                    written.add(slot)
                    self._put(*slot, content_at(sequence, position))

    def _put(self, block_id: int, offset: int, content: Content | None) -> None:
        if content is None:
            self.slots.pop((block_id, offset), None)
        else:
            self.slots[block_id, offset] = content

    def _verify_visible(self, sequence: ModelSequence, target: int) -> None:
        """Checks what the queries at the computed positions see, in the table and in a mirror kept by changes only."""
        start = sequence.cache.num_computed_tokens
        changed = sequence.cache.drain_changes()
        for table, mirror, group in zip(sequence.cache.tables, sequence.mirrors, self.manager.groups, strict=True):
            assert changed.start <= len(mirror)
            mirror[changed.start :] = table.block_ids[changed.start :]
            first = first_visible_position(group.window, start)
            for position in range(first, target):
                index, offset = divmod(position, self.manager.block_size)
                block_id = table.block_ids[index]
                assert block_id != NO_BLOCK and mirror[index] == block_id
                assert self.slots.get((block_id, offset)) == content_at(sequence, position), f"position {position} sees foreign K/V"

    def _snapshot(self):
        tables = [[list(table.block_ids) for table in sequence.cache.tables] for sequence in self.sequences]
        return tables, self.manager.num_free_blocks


def make(num_blocks=16, block_size=4, groups=FULL, enable_prefix_caching=True) -> MemoryOracle:
    """Returns a small memory beside its model."""
    return MemoryOracle(
        KVManager(num_blocks=num_blocks, block_size=block_size, groups=groups, enable_prefix_caching=enable_prefix_caching)
    )


def compute(oracle, sequence, *, chunk=1000) -> None:
    """Computes all known tokens of a sequence, alone, with every check."""
    while sequence.cache.num_computed_tokens < len(sequence.token_ids):
        assert oracle.schedule(sequence, chunk)
        oracle.run_step()
        oracle.check()


def run(oracle, token_ids, namespace=(), *, chunk=1000) -> int:
    """Computes a token run from opening to freeing, and returns how many of its tokens were hit."""
    sequence = oracle.open(token_ids, namespace)
    compute(oracle, sequence, chunk=chunk)
    oracle.free(sequence)
    oracle.check()
    return sequence.cache.num_hit_tokens
