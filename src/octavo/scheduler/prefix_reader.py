"""What the scheduler asks of a tier below memory.

Owns: the interface. Must not know: which tier that is.
"""

from typing import Protocol

from octavo.memory.prefix_match import PrefixMatch
from octavo.memory.restore import Restore
from octavo.scheduler.sequence import Sequence


class PrefixReader(Protocol):
    """Brings prefixes back into memory while others run."""

    def begin_read(self, sequence: Sequence, match: PrefixMatch) -> Restore | None:
        """Starts to read what continues a waiting sequence's prefix; None when there is nothing worth waiting for."""
        ...
