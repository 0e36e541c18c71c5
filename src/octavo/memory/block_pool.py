"""The owner of all block ids.

Owns: reference counts, the order in which blocks are handed out, and the capacity. Must not know: tokens, sequences, or what
a block's content means (`contents` is opaque here).

A block id is in one state: free (nothing reusable in it), cached (reusable content, no holder), used (held), or retired (outside
the capacity). Free blocks are handed out first, the last freed one before those never used, because its pages are committed.

Invariants:
1. free + cached + used = capacity; retired ids are the rest.
2. A block is used exactly when its reference count is above 0, and cached exactly when the count is 0 and it has content.
3. Ids are never renumbered: a block keeps its id while it is held or cached.
"""

from collections.abc import Callable, Hashable

from octavo.memory.eviction_order import EvictionOrder

DEFAULT_PRIORITY = 50  # of a block that nobody asked to keep for longer, or for less long


class BlockPool:
    """Ids ``0 … num_ids-1``, each operation O(1) except `shrink`, `decommit` and `take_these`.

    Attributes:
        ref_counts: holders of each block.
        contents: what each block holds for reuse, or None; set with `set_content`.
    """

    def __init__(self, num_blocks: int):
        self.ref_counts: list[int] = []
        self.contents: list[object | None] = []
        self._free: list[int] = []  # handed out from the end
        self._cached = EvictionOrder()
        self._cached_of: dict[Hashable, EvictionOrder] = {}  # the same blocks by owner; none is empty
        self._owners: list[Hashable] = []
        self._priorities: list[int] = []
        self._retired: set[int] = set()
        self._released: dict[int, None] = {}  # retired since the last drain
        self._freed: list[int] | None = None  # became free since the last drain; None: nobody wants to know
        self._committed: set[int] = set()  # handed out since their pages last went back to the system
        self.grow(num_blocks)

    @property
    def num_ids(self) -> int:
        """Ids ever in use, as many as the largest capacity that there was; storage must have room for this many blocks."""
        return len(self.ref_counts)

    @property
    def capacity(self) -> int:
        return len(self.ref_counts) - len(self._retired)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.capacity - self.num_available

    @property
    def num_committed(self) -> int:
        """Blocks that may have pages: those handed out since their pages last went back to the system."""
        return len(self._committed)

    def take(self) -> int:
        """Hands out a free block with one holder; there must be one."""
        block_id = self._free.pop()
        self.ref_counts[block_id] = 1
        self._committed.add(block_id)
        return block_id

    def take_these(self, block_ids: range) -> None:
        """Hands out these free blocks, each with one holder. Cost: O(free blocks)."""
        num_before = len(self._free)
        self._free = [block_id for block_id in self._free if block_id not in block_ids]
        assert num_before - len(self._free) == len(block_ids), "a block that is not free was asked for"
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        self._committed.update(block_ids)

    def oldest_cached(self) -> int:
        """Returns the cached block to evict next; there must be one."""
        return self._cached.first()

    def oldest_cached_of(self, owner: Hashable) -> int:
        """Returns the cached block of an owner to evict next; there must be one."""
        return self._cached_of[owner].first()

    def num_cached_of(self, owner: Hashable) -> int:
        """Returns how many blocks are cached for an owner."""
        return len(self._cached_of.get(owner, ()))

    def cached_ids(self) -> list[int]:
        """Returns the cached blocks, the next to be evicted first."""
        return list(self._cached)

    def hold(self, block_id: int) -> None:
        """Adds a holder to a used or cached block."""
        if self.ref_counts[block_id] == 0:
            self._uncache(block_id)
        self.ref_counts[block_id] += 1

    def release(self, block_id: int) -> None:
        """Takes one holder away; the last one leaves the block cached if it has content, else free."""
        count = self.ref_counts[block_id] - 1
        assert count >= 0, f"block {block_id} released more often than held"
        self.ref_counts[block_id] = count
        if count == 0:
            if self.contents[block_id] is None:
                self._add_free(block_id)
            else:
                self._cache(block_id)

    def set_content(self, block_id: int, content: object, owner: Hashable = None) -> None:
        """Records the content of a used block, and whose cached block it will be."""
        assert self.ref_counts[block_id] > 0, f"block {block_id} has no holder that could have filled it"
        self.contents[block_id] = content
        self._owners[block_id] = owner
        self._priorities[block_id] = DEFAULT_PRIORITY

    def set_priority(self, block_id: int, priority: int) -> None:
        """Changes how long a block with content is kept; a cached one becomes the last of its new priority."""
        if priority == self._priorities[block_id]:
            return
        is_cached = self.ref_counts[block_id] == 0
        if is_cached:
            self._uncache(block_id)
        self._priorities[block_id] = priority
        if is_cached:
            self._cache(block_id)

    def forget_content(self, block_id: int) -> None:
        """Drops a block's content; a cached block becomes free."""
        self.contents[block_id] = None
        if self.ref_counts[block_id] == 0:
            self._uncache(block_id)
            self._add_free(block_id)

    def _add_free(self, block_id: int) -> None:
        self._free.append(block_id)
        if self._freed is not None:
            self._freed.append(block_id)

    def watch_freed(self) -> Callable[[], list[int]]:
        """Returns a function that returns the ids of the blocks that became free since its last call."""
        self._freed = []

        def drain() -> list[int]:
            freed, self._freed = self._freed, []
            return freed or []

        return drain

    def _cache(self, block_id: int) -> None:
        priority, owner = self._priorities[block_id], self._owners[block_id]
        self._cached.add(block_id, priority)
        if owner is not None:
            self._cached_of.setdefault(owner, EvictionOrder()).add(block_id, priority)

    def _uncache(self, block_id: int) -> None:
        owner = self._owners[block_id]
        self._cached.remove(block_id)
        if owner is not None:
            self._cached_of[owner].remove(block_id)
            if not self._cached_of[owner]:
                del self._cached_of[owner]

    def grow(self, num_blocks: int) -> None:
        """Adds ``num_blocks`` blocks: retired ids first, lowest first, then new ones."""
        back = sorted(self._retired)[:num_blocks]
        self._retired.difference_update(back)
        for block_id in back:
            self._released.pop(block_id, None)
        new = range(self.num_ids, self.num_ids + num_blocks - len(back))
        self.ref_counts.extend([0] * len(new))
        self.contents.extend([None] * len(new))
        self._owners.extend([None] * len(new))
        self._priorities.extend([DEFAULT_PRIORITY] * len(new))
        self._free[:0] = reversed([*back, *new])

    def shrink(self, num_blocks: int) -> None:
        """Retires ``num_blocks`` free blocks, those longest free first; there must be as many."""
        assert num_blocks <= len(self._free), "only free blocks can be retired"
        gone, self._free = self._free[:num_blocks], self._free[num_blocks:]
        self._retired.update(gone)
        self._released.update(dict.fromkeys(gone))

    def drain_released(self) -> list[int]:
        """Returns the ids retired since the last call and still retired."""
        released = list(self._released)
        self._released.clear()
        self._committed.difference_update(released)
        return released

    def decommit(self, num_blocks: int) -> list[int]:
        """Returns up to ``num_blocks`` free blocks that may have pages, longest free first; they count as without from now on.

        Cost: O(free blocks).
        """
        chosen = [block_id for block_id in self._free if block_id in self._committed][:num_blocks]
        self._committed.difference_update(chosen)
        gone = set(chosen)
        self._free = chosen + [block_id for block_id in self._free if block_id not in gone]
        return chosen

    def check_invariants(self) -> None:
        """Asserts the module's invariants 1 and 2. Cost: O(num_ids)."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is twice on the free list"
        assert not (free & cached or free & self._retired or cached & self._retired), "a block is in two states"
        used = {block_id for block_id, count in enumerate(self.ref_counts) if count > 0}
        assert min(self.ref_counts, default=0) >= 0, "negative reference count"
        assert not used & (free | cached | self._retired), "a held block can be handed out"
        assert len(free) + len(cached) + len(used) == self.capacity, (
            f"free {len(free)} + cached {len(cached)} + used {len(used)} != capacity {self.capacity}"
        )
        assert used | cached <= self._committed, "a block with content counts as without pages"
        unused_content = {block_id for block_id, content in enumerate(self.contents) if content is not None} - used
        assert unused_content == cached, "cached blocks are not exactly the unheld blocks with content"
