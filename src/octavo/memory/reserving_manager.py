"""KV memory as it is without paging, for real: each sequence's blocks are one run of consecutive ids, reserved when it starts.

Owns: which run a sequence has. Must not know: what `KVManager` does not know either.

It stands in the place of a `KVManager`, under the same scheduler and the same kernels, to show what paging buys.

Invariants:
1. A run has room for all tokens that its sequence will ever have, so a running sequence is never refused a block.
2. Nothing is shared, and nothing is kept after a sequence ends.
3. A run stays whole until its sequence ends: blocks that a sliding window has left are not given back.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from octavo.errors import ConfigError
from octavo.memory.arenas import BuddyArena, Run
from octavo.memory.kv_manager import KVManager, PrefixMatch
from octavo.memory.layer_groups import LayerGroup
from octavo.memory.reservation_policies import Policy
from octavo.memory.sequence_cache import SequenceCache


@dataclass(slots=True)
class Reservation:
    """What a sequence has: tokens at its end, tokens that its run has room for, and the run once it is placed."""

    final_length: int
    num_reserved_tokens: int
    run: Run | None = None


class ReservingManager(KVManager):
    """A `KVManager` whose tables are contiguous.

    Args:
        policy: how many tokens are reserved.
        final_length: of a sequence with this prompt: what an engine without paging can only guess.
        max_model_len: most tokens of a sequence.

    Raises:
        ConfigError: not even one sequence of ``max_model_len`` tokens has room.
    """

    watermark_ratio = 0.0  # what is reserved already needs nothing kept back for it

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        groups: Sequence[LayerGroup],
        policy: Policy,
        final_length: Callable[[Sequence[int]], int],
        max_model_len: int,
    ):
        whole = [replace(group, window=None) for group in groups]  # see invariant 3; the kernels know the windows
        super().__init__(num_blocks=num_blocks, block_size=block_size, groups=whole, enable_prefix_caching=False)
        self._policy = policy
        self._final_length = final_length
        self._max_model_len = max_model_len
        self._arena = BuddyArena(num_blocks // len(whole))  # of places for one block of each group
        self._reservations: dict[SequenceCache, Reservation] = {}
        longest = self._arena.take(self._num_table_blocks(max_model_len))
        if longest is None:
            raise ConfigError(
                f"a KV memory of {num_blocks} blocks has no contiguous room for one sequence of {max_model_len} tokens",
                hint="raise kv_memory, or lower max_model_len",
            )
        self._arena.give_back(longest)

    def open(self, token_ids: Sequence[int], namespace: Hashable, match: PrefixMatch | None) -> SequenceCache:
        """Starts a sequence without blocks."""
        cache = super().open(token_ids, namespace, None)
        final_length = self._final_length(token_ids)
        self._reservations[cache] = Reservation(final_length, self._policy(len(token_ids), final_length, self._max_model_len))
        return cache

    def allocate(self, cache: SequenceCache, num_tokens: int) -> bool:
        """Places the sequence's run if it has none; returns False if there is no gap for it."""
        reservation = self._reservations[cache]
        if reservation.run is None:
            run = self._arena.take(self._num_table_blocks(reservation.num_reserved_tokens))
            if run is None:
                return False
            reservation.run = run
            self._fill_tables(cache, reservation)
        assert num_tokens <= cache.num_writable_tokens, "a sequence grows beyond what was reserved for it"
        return True

    def fork(self, cache: SequenceCache) -> SequenceCache:
        """Is not there: see invariant 2."""
        raise AssertionError("sequences of a memory without paging cannot share blocks")

    def free(self, cache: SequenceCache, token_ids: Sequence[int]) -> None:
        """Ends a sequence and gives its run back."""
        super().free(cache, token_ids)
        run = self._reservations.pop(cache).run
        if run is not None:
            self._arena.give_back(run)

    def resize(self, num_blocks: int) -> int:
        """Keeps the capacity: runs cannot be moved together."""
        return self.capacity

    def num_promised_slots(self) -> int:
        """Returns how many reserved slots will hold a token that is not computed yet."""
        placed = ((cache, reservation) for cache, reservation in self._reservations.items() if reservation.run is not None)
        return len(self.groups) * sum(reservation.final_length - cache.num_computed_tokens for cache, reservation in placed)

    def _num_table_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _fill_tables(self, cache: SequenceCache, reservation: Reservation) -> None:
        """Gives each layer group its part of the run; what the arena rounded up stays free, and out of reach."""
        assert reservation.run is not None, "a run is placed before tables are made of it"
        length = self._num_table_blocks(reservation.num_reserved_tokens)
        first = reservation.run.start * len(self.groups)
        self._pool.take_these(range(first, first + length * len(self.groups)))
        for group, table in enumerate(cache.tables):
            for block_id in range(first + group * length, first + (group + 1) * length):
                table.append(block_id)
        cache.num_writable_tokens = length * self.block_size
