"""The decode speed that memory bandwidth allows at most.

Owns: the bytes that one decode step reads. Must not know: whether anything fits.

Invariants:
1. Computing, communication and scheduling take no time in it. For a dense model that makes it a ceiling; for a mixture of
   experts, whose tokens are taken to choose independently, it is an estimate: real batches agree more often and read less.
"""

from dataclasses import dataclass

from octavo.planner.formats import StorageFormat
from octavo.planner.plan_spec import PlanSpec
from octavo.planner.weight_sizes import WeightSizes

MAX_USERS = 1 << 16  # where the search for the most users ends


@dataclass(frozen=True)
class SpeedCeiling:
    """Decode speed of one model on one machine.

    Attributes:
        storage: of the KV cache.
        bandwidth: bytes per second of all nodes together.
    """

    spec: PlanSpec
    weights: WeightSizes
    storage: StorageFormat
    bandwidth: int

    def tokens_per_s(self, num_users: int, context_tokens: int) -> float:
        """Returns the tokens per second that each of ``num_users`` gets; a state is read and written back."""
        read = self.spec.sequence_bytes(context_tokens, self.storage) + self.spec.state_bytes()
        return self.bandwidth / (self.weights.bytes_read(self.spec, num_users) + num_users * read)

    def max_users(self, context_tokens: int, min_tokens_per_s: float) -> int:
        """Returns how many users get at least this speed each; at most `MAX_USERS`."""
        fits, too_many = 0, MAX_USERS + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self.tokens_per_s(middle, context_tokens) >= min_tokens_per_s:
                fits = middle
            else:
                too_many = middle
        return fits
