"""Where blocks to write to come from: cached content is dropped for them, and some are filled by a copy.

Owns: evictions, and which block a copy may go to. Must not know: sequences, or which block is to be copied.
"""

from collections.abc import Hashable

from octavo.memory.block_copies import BlockCopies
from octavo.memory.block_pool import BlockPool
from octavo.memory.match_end import EvictedPrefixes
from octavo.memory.memory_stats import EventCounts
from octavo.memory.prefix_tree import PrefixTree, quota_owner
from octavo.memory.quotas import QuotaBook


class BlockSupply:
    """The supply of one memory.

    Args:
        copies: the queue of copies that are to be done.
        evicted: told of what is evicted.
        events: counts evictions and copies.

    Attributes:
        quotas: how many cached blocks each owner of namespaces may have.
    """

    def __init__(self, pool: BlockPool, tree: PrefixTree, copies: BlockCopies, evicted: EvictedPrefixes, events: EventCounts):
        self._pool = pool
        self._tree = tree
        self._copies = copies
        self._evicted = evicted
        self._events = events
        self.quotas = QuotaBook()

    def make_free(self, num_blocks: int) -> None:
        """Evicts cached blocks until ``num_blocks`` are free; as many must be available."""
        while self._pool.num_free < num_blocks:
            self.evict(self._pool.oldest_cached())

    def drop_cached(self, num_blocks: int) -> int:
        """Evicts up to ``num_blocks`` cached blocks; returns how many."""
        before = self._pool.num_cached
        target = max(0, before - num_blocks)
        while self._pool.num_cached > target:
            self.evict(self._pool.oldest_cached())
        return before - self._pool.num_cached

    def keep_quota(self, namespace: Hashable) -> None:
        """Evicts cached blocks of the namespace's owner beyond its quota."""
        owner = quota_owner(namespace)
        limit = self.quotas.limit(owner, self._pool.capacity)
        if limit is not None:
            while self._pool.num_cached_of(owner) > limit:
                self.evict(self._pool.oldest_cached_of(owner))

    def evict(self, block_id: int) -> None:
        """Drops a cached block, with what cannot be used without it."""
        self._evicted.add(self._tree.evict(block_id))
        self._events.evictions += 1

    def can_copy_to(self, num_blocks: int) -> bool:
        """Returns whether ``num_blocks`` are available that no copy still reads."""
        if num_blocks == 0:
            return True
        num_read = sum(self._pool.ref_counts[source] == 0 for source in self._copies.sources())
        return num_blocks <= self._pool.num_available - num_read

    def take_copy_of(self, source: int) -> int:
        """Takes a block that no copy still reads, and queues the copy onto it."""
        still_read = self._copies.sources()
        put_aside = []
        while True:
            self.make_free(1)
            block_id = self._pool.take()
            if block_id not in still_read:
                break
            put_aside.append(block_id)
        for other in put_aside:
            self._pool.release(other)
        self._copies.add(source, block_id)
        self._events.copies += 1
        return block_id
