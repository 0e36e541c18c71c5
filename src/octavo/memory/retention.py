"""How long cached blocks are worth keeping: what requests asked for, until when, and what is pinned.

Owns: claims on nodes of the prefix tree, their end, and the pins. Must not know: who reads a clock; the time is told.

A claim asks for a priority until a time. A block counts with the highest of the claims on it, `DEFAULT_PRIORITY` without any; one
that a request used without asking for anything is not worth less than that. A pin is a claim above all priorities. A block is never
dropped before what follows it, so a claim on a range of tokens holds for all that comes before the range.

Invariants:
1. A node's claims are its parent's, too; so no block goes before one that follows it.
2. In windowed groups a claim holds only for the blocks that the query after the sequence's last token sees.
3. Claims decide the order of eviction and nothing else: a claimed or pinned block is handed out when nothing else is left.
4. Of claims on a node, only those are kept that may count one day.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from octavo.memory.block_pool import DEFAULT_PRIORITY, BlockPool
from octavo.memory.block_table import NO_BLOCK
from octavo.memory.claims import PINNED_PRIORITY, Claim, Retention
from octavo.memory.layer_groups import LayerGroup, first_visible_position
from octavo.memory.prefix_tree import PrefixNode, PrefixTree

DEFAULT_PIN_PERCENT = 25
MAX_STALE_EVENTS = 4  # for each block of the pool, before the events are sorted out


@dataclass(eq=False)
class Pin:
    """A prefix that is kept before all others.

    Attributes:
        nodes: its whole blocks and what follows them, in order; those that were dropped are no longer attached.
    """

    pin_id: str
    namespace: Hashable
    token_ids: tuple[int, ...]
    claim: Claim
    nodes: list[PrefixNode] = field(repr=False)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prefix that are still in memory."""
        num_tokens = 0
        for node in self.nodes:
            if not node.attached:
                break
            num_tokens += len(node.token_ids)
        return min(num_tokens, len(self.token_ids))


class RetentionBook:
    """The claims on one tree.

    Attributes:
        now: the time, in seconds of any clock that does not go back.
        pin_percent: of the pool's blocks, how many may be pinned.
        pins: by id.
    """

    def __init__(self, tree: PrefixTree, pool: BlockPool, groups: Sequence[LayerGroup], block_size: int):
        self._tree = tree
        self._pool = pool
        self._groups = tuple(groups)
        self._block_size = block_size
        self._windows = [group.window for group in groups if group.window is not None]
        self._events: list[tuple[float, int, int, PrefixNode]] = []  # (when a claim ends, −depth, number, node)
        self._numbers = count()
        self.now = 0.0
        self.pin_percent = DEFAULT_PIN_PERCENT
        self.pins: dict[str, Pin] = {}

    def set_time(self, now: float) -> None:
        """Ends the claims whose time has come."""
        self.now = now
        while self._events and self._events[0][0] <= now:
            ends_at, _negative_depth, _, node = heappop(self._events)
            if node.attached:
                claims = tuple(claim for claim in node.claims if claim.expires_at > ends_at)
                window_claims = tuple(claim for claim in node.window_claims if claim.expires_at > ends_at)
                self._set_claims(node, claims, window_claims)
        for pin_id in [pin.pin_id for pin in self.pins.values() if pin.claim.expires_at <= now]:
            del self.pins[pin_id]

    def note_use(self, nodes: Sequence[PrefixNode], num_tokens: int, retentions: Sequence[Retention]) -> None:
        """Records what a sequence that ends asks for.

        Args:
            nodes: the whole blocks of its tokens and the partial last one's, in order.
            num_tokens: its computed tokens.
        """
        if not retentions:
            self._note_plain_use(nodes)
            return
        claims = [(self._claim(retention), retention) for retention in retentions]
        first_seen = self._first_seen(num_tokens)
        following: list[Claim] = []
        asks_default = False
        for index in range(len(nodes) - 1, -1, -1):
            start = index * self._block_size
            own = [claim for claim, asked in claims if self._overlaps(asked, start, num_tokens)]
            asks_default = asks_default or not own
            following += [claim for claim in own if claim not in following]
            self._add(nodes[index], index, following, asks_default=asks_default, is_seen=index >= first_seen)

    def pin(
        self, pin_id: str, namespace: Hashable, token_ids: Sequence[int], *, ttl_s: float | None, max_blocks: int
    ) -> Pin | None:
        """Pins what is cached of a prefix, instead of what the pin held before.

        Args:
            max_blocks: most blocks that may be pinned at once.

        Returns:
            The pin; None, and nothing changed, if there would be more.
        """
        nodes = self._path(namespace, token_ids)
        others = [pin for pin in self.pins.values() if pin.pin_id != pin_id]
        claim = Claim(PINNED_PRIORITY, inf if ttl_s is None else self.now + ttl_s)
        pin = Pin(pin_id, namespace, tuple(token_ids), claim, nodes)
        if len(self._blocks_of([*others, pin])) > max_blocks:
            return None
        self.unpin(pin_id)
        self.pins[pin_id] = pin
        first_seen = self._first_seen(len(token_ids))
        for index in range(len(nodes) - 1, -1, -1):
            self._add(nodes[index], index, [claim], asks_default=False, is_seen=index >= first_seen)
        return pin

    def unpin(self, pin_id: str) -> bool:
        """Releases a pin; its blocks count as any others. False if there is none."""
        pin = self.pins.pop(pin_id, None)
        if pin is None:
            return False
        for node in reversed(pin.nodes):
            if node.attached:
                self._set_claims(
                    node,
                    tuple(claim for claim in node.claims if claim is not pin.claim),
                    tuple(claim for claim in node.window_claims if claim is not pin.claim),
                )
        return True

    @property
    def max_pinned_blocks(self) -> int:
        """Blocks that may be pinned at once."""
        return self._pool.capacity * self.pin_percent // 100

    @property
    def num_pinned_blocks(self) -> int:
        """Blocks in memory that are pinned. Cost: O(blocks pinned)."""
        return len(self._blocks_of(self.pins.values()))

    # ---- inside

    def _note_plain_use(self, nodes: Sequence[PrefixNode]) -> None:
        for index in range(len(nodes) - 1, -1, -1):
            if nodes[index].is_plain:
                return  # and so is all above it
            self._add(nodes[index], index, (), asks_default=True, is_seen=False)

    def _claim(self, retention: Retention) -> Claim:
        return Claim(retention.priority, inf if retention.ttl_s is None else self.now + retention.ttl_s)

    def _overlaps(self, asked: Retention, start: int, num_tokens: int) -> bool:
        end = num_tokens if asked.end is None else asked.end
        return asked.start < start + self._block_size and start < end

    def _first_seen(self, num_tokens: int) -> int:
        """Returns the first block that the query at ``num_tokens`` sees in every windowed group; the largest window decides."""
        if not self._windows:
            return 0
        return first_visible_position(max(self._windows), num_tokens) // self._block_size

    def _add(self, node: PrefixNode, depth: int, new: Iterable[Claim], *, asks_default: bool, is_seen: bool) -> None:
        node.is_plain = node.is_plain or asks_default
        claims = _merged(node.claims, new, is_plain=node.is_plain)
        window_claims = _merged(node.window_claims, new if is_seen else (), is_plain=node.is_plain)
        known = {id(claim) for claim in (*node.claims, *node.window_claims)}
        for claim in {id(claim): claim for claim in (*claims, *window_claims)}.values():
            if claim.expires_at != inf and id(claim) not in known:
                heappush(self._events, (claim.expires_at, -depth, next(self._numbers), node))
        self._set_claims(node, claims, window_claims)
        if len(self._events) > MAX_STALE_EVENTS * max(1, self._pool.num_ids):
            self._events = [event for event in self._events if event[3].attached]
            heapify(self._events)

    def _set_claims(self, node: PrefixNode, claims: tuple[Claim, ...], window_claims: tuple[Claim, ...]) -> None:
        node.claims, node.window_claims = claims, window_claims
        for group, block_id in zip(self._groups, node.block_ids, strict=True):
            if block_id != NO_BLOCK:
                kept = claims if group.window is None else window_claims
                self._pool.set_priority(block_id, max((claim.priority for claim in kept), default=DEFAULT_PRIORITY))

    def _path(self, namespace: Hashable, token_ids: Sequence[int]) -> list[PrefixNode]:
        """Returns the computed nodes of a prefix: whole blocks, and the one that holds what is left."""
        node, nodes = self._tree.roots.get(namespace), []
        for start in range(0, len(token_ids), self._block_size):
            key = tuple(token_ids[start : start + self._block_size])
            if node is None:
                break
            node, length = self._tree.longest_head(node, key, lambda child, _: child.owner is None)
            if node is None or length < len(key):
                break
            nodes.append(node)
        return nodes

    def _blocks_of(self, pins: Iterable[Pin]) -> set[int]:
        blocks: set[int] = set()
        for pin in pins:
            first_seen = self._first_seen(len(pin.token_ids))
            attached = [(index, node) for index, node in enumerate(pin.nodes) if node.attached]
            for index, node in attached:
                for group, block_id in zip(self._groups, node.block_ids, strict=True):
                    if block_id != NO_BLOCK and (group.window is None or index >= first_seen):
                        blocks.add(block_id)
        return blocks


def _merged(old: tuple[Claim, ...], new: Iterable[Claim], *, is_plain: bool) -> tuple[Claim, ...]:
    """Returns the claims that may count one day: pins, and of the others those that outlive every higher one."""
    claims = [*old, *(claim for claim in new if claim not in old)]
    if is_plain:
        claims = [claim for claim in claims if claim.priority > DEFAULT_PRIORITY]
    claims.sort(key=lambda claim: (-claim.priority, -claim.expires_at))
    kept: list[Claim] = []
    latest = -inf
    for claim in claims:
        if claim.priority == PINNED_PRIORITY:
            kept.append(claim)
        elif claim.expires_at > latest:
            kept.append(claim)
            latest = claim.expires_at
    return tuple(kept)
