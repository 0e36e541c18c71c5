"""KV memory as it is without paging: one contiguous run of slots per sequence, reserved when the sequence starts.

Owns: how much is reserved for a sequence. Must not know: where in the arena a run lies, or when a sequence runs.

It has the methods of `KVManager` that the scheduler calls, with a "block" of one slot, so that one scheduler decides over both.

Invariants:
1. A sequence's run has room for all tokens that it will ever have, so a running sequence is never refused a slot.
2. Nothing is shared.
"""

from collections.abc import Hashable

from octavo.errors import ConfigError
from octavo.memory.arenas import Arena, BuddyArena, CompactingArena, Run
from octavo.memory.reservation_policies import Policy, reserve_exactly, reserve_maximum, reserve_power_of_two
from octavo.simulator.memory_split import MemorySplit
from octavo.simulator.tokens import Tokens

RESERVING = {  # name -> where a run lies, how long it is
    "maximum": (BuddyArena, reserve_maximum),
    "power-of-two": (BuddyArena, reserve_power_of_two),
    "oracle": (BuddyArena, reserve_exactly),
    "compacting": (CompactingArena, reserve_power_of_two),
}


class Reservation:
    """One sequence's run: what `SequenceCache` is to paging.

    Attributes:
        run: None until the sequence's first slot is asked for.
        num_reserved_slots: what the policy asked for; the run may be longer.
    """

    __slots__ = ("num_computed_tokens", "num_reserved_slots", "run", "tokens")
    next_commit_tokens = 0  # every step's tokens are committed

    def __init__(self, tokens: Tokens, num_reserved_slots: int):
        self.tokens = tokens
        self.num_reserved_slots = num_reserved_slots
        self.num_computed_tokens = 0
        self.run: Run | None = None

    @property
    def num_blocks(self) -> int:
        """Slots held."""
        return self.run.num_slots if self.run else 0

    @property
    def num_writable_tokens(self) -> int:
        """Tokens that the run has room for."""
        return self.num_reserved_slots if self.run else 0


class ReservingMemory:
    """A KV memory of contiguous runs.

    Args:
        max_model_len: most tokens of a sequence.

    Raises:
        ConfigError: not even one sequence of ``max_model_len`` tokens fits.
    """

    watermark_ratio = 0.0  # what is reserved already needs nothing kept back for it

    def __init__(self, arena: Arena, policy: Policy, max_model_len: int):
        self._arena = arena
        self._policy = policy
        self._max_model_len = max_model_len
        self._num_held_slots = 0
        self._open: set[Reservation] = set()
        longest = arena.take(max_model_len)
        if longest is None:
            raise ConfigError(
                f"a KV memory of {arena.capacity} tokens has no contiguous room for one sequence of {max_model_len}",
                hint="give more memory, or a smaller maximum length",
            )
        arena.give_back(longest)

    @property
    def capacity(self) -> int:
        """Slots of the memory."""
        return self._arena.capacity

    @property
    def largest_capacity(self) -> int:
        """The arena's, which never changes."""
        return self.capacity

    @property
    def num_free_blocks(self) -> int:
        """Slots in no run, whether or not a run could be placed there."""
        return self.capacity - self._num_held_slots

    def blocks_needed(self, num_tokens: int, max_step_tokens: int) -> int:
        """Returns the fewest slots that a sequence of ``num_tokens`` takes."""
        return num_tokens

    def max_tokens_alone(self, max_step_tokens: int) -> int:
        """Returns the length of the longest sequence."""
        return self._max_model_len

    def match(self, token_ids: Tokens, namespace: Hashable = ()) -> None:
        """Finds nothing: see invariant 2."""

    def open(self, token_ids: Tokens, namespace: Hashable, match: None) -> Reservation:
        """Starts a sequence without slots."""
        num_slots = self._policy(token_ids.num_prompt_tokens, token_ids.final_length, self._max_model_len)
        reservation = Reservation(token_ids, num_slots)
        self._open.add(reservation)
        return reservation

    def allocate(self, reservation: Reservation, num_tokens: int) -> bool:
        """Places the sequence's run if it has none; returns False if there is no gap for it."""
        if reservation.run is None:
            reservation.run = self._arena.take(reservation.num_reserved_slots)
            self._num_held_slots += reservation.num_blocks
        return reservation.run is not None

    def commit(self, reservation: Reservation, token_ids: Tokens, num_computed_tokens: int) -> None:
        """Records that this many tokens are in memory."""
        reservation.num_computed_tokens = num_computed_tokens

    def free(self, reservation: Reservation, token_ids: Tokens) -> None:
        """Ends a sequence and gives its run back."""
        self._open.remove(reservation)
        if reservation.run is not None:
            self._num_held_slots -= reservation.num_blocks
            self._arena.give_back(reservation.run)

    def drain_copies(self) -> list[tuple[int, int]]:
        """Returns no block copies; what an arena moves is in `drain_moved_slots`."""
        return []

    def drain_moved_slots(self) -> int:
        """Returns how many slots were copied to other places since the last call."""
        return self._arena.drain_moved_slots()

    def split(self) -> MemorySplit:
        """Returns what the slots are used for now. Cost: O(open sequences)."""
        tokens = sum(reservation.num_computed_tokens for reservation in self._open)
        final = sum(reservation.tokens.final_length for reservation in self._open)
        reserved = sum(reservation.num_reserved_slots for reservation in self._open)
        return MemorySplit(tokens, final - tokens, reserved - final, self.capacity - reserved)


def reserving_memory(name: str, capacity: int, max_model_len: int) -> ReservingMemory:
    """Returns the memory called ``name`` in `RESERVING`, of ``capacity`` slots."""
    arena, policy = RESERVING[name]
    return ReservingMemory(arena(capacity), policy, max_model_len)
