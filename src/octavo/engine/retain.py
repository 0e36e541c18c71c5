"""What a request says about how long its blocks are worth keeping, and the prefixes that are pinned.

Owns: the reading of ``retain``, and pins as users see them. Must not know: HTTP, how blocks are dropped.

Invariants:
1. Pinned blocks are at most `RetentionBook.pin_percent` of the pool when a pin is made; a request that needs one of them gets it.
"""

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from octavo.errors import CapacityError, RequestError
from octavo.memory.claims import MAX_PRIORITY, Retention
from octavo.memory.kv_manager import KVManager
from octavo.memory.retention import Pin

MAX_RETENTIONS = 16  # ranges of one request
Retain = Retention | Mapping[str, Any] | Sequence[Retention | Mapping[str, Any]]


def read_retentions(retain: Retain | None) -> tuple[Retention, ...]:
    """Returns what a request asks for its blocks.

    Args:
        retain: a `Retention`, a map of its fields, or a list of these for several ranges of tokens.

    Raises:
        RequestError: it is none of these, or a field has a value that it cannot have.
    """
    if retain is None:
        return ()
    listed = [retain] if isinstance(retain, Retention | Mapping) else retain
    if isinstance(listed, str) or not isinstance(listed, Sequence) or len(listed) > MAX_RETENTIONS:
        raise _reject(f"takes a map of {_names()}, or a list of at most {MAX_RETENTIONS} of them")
    return tuple(map(_read_retention, listed))


def _read_retention(given: Retention | Mapping[str, Any]) -> Retention:
    values = asdict(given) if isinstance(given, Retention) else given
    known = {item.name for item in fields(Retention)}
    if not isinstance(values, Mapping) or not set(values) <= known or values.get("priority") is None:
        raise _reject(f"has {given!r}; it takes a map of {_names()}, of which priority must be given")
    retention = Retention(**{name: value for name, value in values.items() if value is not None})
    if type(retention.priority) is not int or not 0 <= retention.priority <= MAX_PRIORITY:
        raise _reject(f"has priority={retention.priority!r}; it must be a whole number from 0 to {MAX_PRIORITY}")
    check_ttl("retain", retention.ttl_s)
    if type(retention.start) is not int or retention.start < 0:
        raise _reject(f"has start={retention.start!r}; it must be a whole number of at least 0")
    if retention.end is not None and (type(retention.end) is not int or retention.end <= retention.start):
        raise _reject(f"has end={retention.end!r}; it must be a whole number above start={retention.start}")
    return retention


def check_ttl(name: str, ttl_s: object) -> None:
    """Raises `RequestError` for a time to live that is no positive number."""
    if ttl_s is None:
        return
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s < math.inf:
        raise RequestError(f"{name} has ttl_s={ttl_s!r}; it must be a number of seconds above 0", field=name)


def _names() -> str:
    return ", ".join(item.name for item in fields(Retention))


def _reject(text: str) -> RequestError:
    return RequestError(f"retain {text}", field="retain")


@dataclass(frozen=True)
class PinnedPrefix:
    """A pinned prefix.

    Attributes:
        num_cached_tokens: those of its tokens whose KV is in memory; fewer than all when running requests needed its blocks.
        seconds_left: until it is released by itself; None: it is not.
    """

    id: str
    num_tokens: int
    num_cached_tokens: int
    seconds_left: float | None


class Prefixes:
    """The pins of one engine. The time is that of the last step."""

    def __init__(self, kv: KVManager):
        self._kv = kv

    def pin(self, token_ids: Sequence[int], namespace: Hashable, *, ttl_s: float | None = None) -> PinnedPrefix:
        """Keeps what is in memory of a prefix before everything else; the same prefix again renews its pin.

        Raises:
            RequestError: ``ttl_s`` is no time.
            CapacityError: pins would hold more than their share of the pool.
        """
        check_ttl("ttl_s", ttl_s)
        book = self._kv.retention
        pin = book.pin(_pin_id(token_ids, namespace), namespace, token_ids, ttl_s=ttl_s, max_blocks=book.max_pinned_blocks)
        if pin is None:
            raise CapacityError(
                f"the prefix's {len(token_ids)} tokens do not fit beside the {book.num_pinned_blocks} blocks pinned already: "
                f"{book.pin_percent} % of the pool's {self._kv.capacity} blocks may be pinned, {book.max_pinned_blocks}",
                hint="release a pin, or raise pin_percent",
            )
        return self._describe(pin)

    def list(self, namespace: Hashable) -> list[PinnedPrefix]:
        """Returns the pins of a namespace, the oldest first."""
        return [self._describe(pin) for pin in self._kv.retention.pins.values() if pin.namespace == namespace]

    def share(self) -> tuple[int, int]:
        """Returns how many blocks are pinned, and how many may be."""
        book = self._kv.retention
        return book.num_pinned_blocks, book.max_pinned_blocks

    def release(self, pin_id: str, namespace: Hashable) -> bool:
        """Lets a prefix count as any other from now on; False if the namespace has no such pin."""
        pin = self._kv.retention.pins.get(pin_id)
        return pin is not None and pin.namespace == namespace and self._kv.retention.unpin(pin_id)

    def _describe(self, pin: Pin) -> PinnedPrefix:
        seconds_left = pin.claim.expires_at - self._kv.retention.now
        return PinnedPrefix(
            pin.pin_id, len(pin.token_ids), pin.num_cached_tokens, None if seconds_left == math.inf else max(0.0, seconds_left)
        )


def _pin_id(token_ids: Sequence[int], namespace: Hashable) -> str:
    """Returns the same name for the same prefix."""
    return "prefix-" + hashlib.sha256(repr((namespace, list(token_ids))).encode()).hexdigest()[:24]
