"""What requests ask for the blocks that they leave in the cache.

Owns: the records. Must not know: blocks, the tree.
"""

from dataclasses import dataclass

MAX_PRIORITY = 100
PINNED_PRIORITY = MAX_PRIORITY + 1


@dataclass(frozen=True)
class Retention:
    """What a request asks for the cached blocks of a range of its tokens.

    Attributes:
        priority: 0 to 100; blocks of lower priority are dropped first.
        ttl_s: seconds from the end of the request for which it counts; None: as long as the blocks are cached.
        start, end: the tokens, prompt and answer counted; None: to the end.
    """

    priority: int
    ttl_s: float | None = None
    start: int = 0
    end: int | None = None


@dataclass(frozen=True, eq=False)
class Claim:
    """A priority until a time."""

    priority: int
    expires_at: float
