"""What waiting sequences may take beside those that run.

Owns: the seats and blocks that running sequences leave. Must not know: who is admitted, or when.
"""

from collections.abc import Iterable

from octavo.memory.kv_manager import KVManager, PrefixMatch
from octavo.scheduler.sequence import Sequence


class AdmissionRoom:
    """The room of one step after the other.

    Args:
        max_step_tokens: the token budget of one step.
        watermark_blocks: free blocks kept back.

    Attributes:
        num_seats: sequences that may still start in this step.
    """

    def __init__(self, kv: KVManager, *, max_num_seqs: int, max_step_tokens: int, watermark_blocks: int):
        self._kv = kv
        self._max_num_seqs = max_num_seqs
        self._max_step_tokens = max_step_tokens
        self._watermark_blocks = watermark_blocks
        self._promised_blocks = 0  # that running sequences still need for the tokens that they know
        self.num_seats = 0

    def count_seats(self, running: Iterable[Sequence]) -> int:
        """Returns how many more sequences may start, the choices of running requests counted that are still to fork."""
        return self._max_num_seqs - sum(sequence.num_choices for sequence in running)

    def start(self, running: Iterable[Sequence], prefills: Iterable[Sequence]) -> None:
        """Begins a step; ``prefills`` are the running sequences that want more than one token."""
        self.num_seats = self.count_seats(running)
        self._promised_blocks = sum(map(self._outstanding_blocks, prefills))

    def has_blocks(self, sequence: Sequence, match: PrefixMatch | None) -> bool:
        """True when the blocks for all known tokens are there beside what running sequences still need for theirs.

        Counting the whole prompt, not its first chunk, keeps a long one from being admitted only to be thrown out again.
        """
        needed = self._blocks_needed(sequence) - (match.num_held_blocks if match else 0)
        return needed + self._promised_blocks + self._watermark_blocks <= self._kv.num_free_blocks

    def take_seats(self, sequence: Sequence) -> None:
        """Takes the seats of a sequence and of the choices that will fork from it."""
        self.num_seats -= sequence.num_choices

    def promise_blocks(self, sequence: Sequence) -> None:
        """Keeps back what a sequence that was started still needs."""
        self._promised_blocks += self._outstanding_blocks(sequence)

    def _outstanding_blocks(self, sequence: Sequence) -> int:
        """Returns how many blocks a running sequence still needs for its known tokens; what wants one token has them."""
        if sequence.num_tokens - sequence.num_computed_tokens <= 1:
            return 0
        assert sequence.cache is not None, "a running sequence holds a cache"
        return max(0, self._blocks_needed(sequence) - sequence.cache.num_blocks)

    def _blocks_needed(self, sequence: Sequence) -> int:
        return self._kv.blocks_needed(sequence.num_tokens + 1, self._max_step_tokens)
