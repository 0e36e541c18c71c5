"""How much of the cache each owner of namespaces may fill.

Owns: the shares. Must not know: blocks.

Invariants:
1. A share limits what is cached, not what running sequences hold: it delays nobody.
"""

from collections.abc import Hashable


class QuotaBook:
    """Shares of the pool in percent.

    Attributes:
        default_percent: of every owner without a share of its own; 100 sets no limit.
    """

    def __init__(self) -> None:
        self.default_percent = 100
        self._percents: dict[Hashable, int] = {}

    def set(self, owner: Hashable, percent: int) -> None:
        """Gives an owner a share of its own."""
        self._percents[owner] = percent

    def limit(self, owner: Hashable, num_blocks: int) -> int | None:
        """Returns how many blocks may be cached for an owner in a pool of ``num_blocks``; None: any number."""
        if owner is None:
            return None
        percent = self._percents.get(owner, self.default_percent)
        return None if percent == 100 else percent * num_blocks // 100
