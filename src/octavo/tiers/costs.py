"""Whether reading a prefix is cheaper than computing it.

Owns: the running estimates of both. Must not know: what is read or computed.
"""

from dataclasses import dataclass

MEMORY_RATIO = 0.9  # weight of what was known before when a new measurement comes in: the last ten or so count
GUESSED_BYTES_PER_SECOND = 500e6  # a slow solid-state disk, until something was read


@dataclass
class TransferCosts:
    """Moving estimates.

    Attributes:
        read_seconds_per_block: of one block.
        compute_seconds_per_token: of a prompt's tokens; None until some were computed, and reading is then taken to be cheaper.
        is_fixed: measurements change nothing any more.
    """

    read_seconds_per_block: float
    compute_seconds_per_token: float | None = None
    is_fixed: bool = False

    def prefers_reading(self, num_blocks: int, num_tokens: int) -> bool:
        """Returns whether reading so many blocks takes less time than computing so many tokens."""
        if self.compute_seconds_per_token is None:
            return True
        return num_blocks * self.read_seconds_per_block < num_tokens * self.compute_seconds_per_token

    def note_read(self, seconds: float) -> None:
        """Takes in how long one block took."""
        if not self.is_fixed:
            self.read_seconds_per_block += (1 - MEMORY_RATIO) * (seconds - self.read_seconds_per_block)

    def note_compute(self, seconds: float, num_tokens: int) -> None:
        """Takes in how long a step took that computed so many tokens of prompts."""
        if self.is_fixed:
            return
        measured = seconds / num_tokens
        known = self.compute_seconds_per_token
        self.compute_seconds_per_token = measured if known is None else known + (1 - MEMORY_RATIO) * (measured - known)


def guessed_costs(block_bytes: int) -> TransferCosts:
    """Returns what to go by before anything was measured."""
    return TransferCosts(block_bytes / GUESSED_BYTES_PER_SECOND)
