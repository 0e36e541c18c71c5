"""API keys: who may call, with which namespace, priority and quotas.

Owns: the key file's form, the comparison of keys, the quotas' state. Must not know: HTTP.

The file has one table per key::

    [keys.alice]
    key = "…"
    namespace = "alice"        # KV is shared only inside a namespace; the key's name if left out
    priority = 0               # lower runs earlier; the best that this key's requests can have
    requests_per_minute = 60   # no limit if left out
    cache_percent = 25         # of the KV blocks, how many may be cached for it; no limit if left out
    tokens_per_minute = 100000 # prompt and answer; no limit if left out

Invariants:
1. Comparing takes the same time whatever the key that was sent: every key is compared, each in constant time.
2. A quota is a bucket that holds one minute's worth and fills evenly. Tokens are charged when they are known, so a bucket may go
   below empty; the next request has to wait until it is not.
"""

import hashlib
import hmac
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError

_FIELDS = {
    "key": str,
    "namespace": str,
    "priority": int,
    "requests_per_minute": int,
    "tokens_per_minute": int,
    "cache_percent": int,
}


class Quota:
    """A bucket of ``per_minute`` units; None: bottomless."""

    def __init__(self, per_minute: int | None):
        self._per_minute = per_minute
        self._level = float(per_minute or 0)
        self._filled_at = time.monotonic()

    def seconds_until_free(self) -> float:
        """Returns how long until something may be taken; 0 when it may be now."""
        if self._per_minute is None:
            return 0.0
        self._fill(self._per_minute)
        return max(0.0, (1.0 - self._level) * 60.0 / self._per_minute)

    def charge(self, amount: int) -> None:
        """Takes ``amount`` units."""
        if self._per_minute is not None:
            self._fill(self._per_minute)
            self._level -= amount

    def _fill(self, per_minute: int) -> None:
        now = time.monotonic()
        self._level = min(float(per_minute), self._level + (now - self._filled_at) * per_minute / 60.0)
        self._filled_at = now


@dataclass(frozen=True)
class ApiKey:
    """Who calls.

    Attributes:
        namespace: KV is shared only inside it; None: among all that have none.
        cache_percent: of the KV blocks, how many may be cached for its namespace; None: the engine's setting.
        priority: of its requests; lower runs earlier.
    """

    name: str
    namespace: str | None = None
    priority: int = 0
    requests: Quota = field(default_factory=lambda: Quota(None))
    tokens: Quota = field(default_factory=lambda: Quota(None))
    cache_percent: int | None = None

    def seconds_until_free(self) -> float:
        """Returns how long the quotas ask the next request to wait."""
        return max(self.requests.seconds_until_free(), self.tokens.seconds_until_free())


ANONYMOUS = ApiKey("-")


class KeyRing:
    """All keys that the server knows; empty: everybody may call."""

    def __init__(self, keys: Mapping[str, ApiKey]):
        self._keys = [(_digest(secret), key) for secret, key in keys.items()]

    def cache_percents(self) -> dict[str, int]:
        """Returns the shares of the cache by namespace; the largest, where keys of one namespace differ."""
        shares: dict[str, int] = {}
        for _, key in self._keys:
            if key.namespace is not None and key.cache_percent is not None:
                shares[key.namespace] = max(key.cache_percent, shares.get(key.namespace, 0))
        return shares

    @property
    def is_empty(self) -> bool:
        """True when no key is asked for."""
        return not self._keys

    def find(self, secret: str) -> ApiKey | None:
        """Returns whose key this is."""
        digest = _digest(secret)
        found = None
        for known, key in self._keys:
            if hmac.compare_digest(known, digest):
                found = key
        return found


def read_keys(api_key: str | None, path: str | None) -> KeyRing:
    """Returns the keys of the settings.

    Raises:
        ConfigError: the file cannot be read, or an entry is wrong.
    """
    keys = {api_key: ApiKey("default")} if api_key else {}
    if path is not None:
        for secret, key in _read_file(Path(path)).items():
            if secret in keys:
                raise ConfigError(f"{path} has the key of {key.name} twice")
            keys[secret] = key
    return KeyRing(keys)


def _read_file(path: Path) -> dict[str, ApiKey]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("keys")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise ConfigError(f"the key file {path} cannot be read: {cause}") from cause
    if not isinstance(tables, dict) or not tables:
        raise ConfigError(f"the key file {path} has no table [keys.NAME]")
    keys: dict[str, ApiKey] = {}
    for name, table in tables.items():
        secret, key = _read_key(name, table)
        if secret in keys:
            raise ConfigError(f"the key file {path} gives {name} the same key as {keys[secret].name}")
        keys[secret] = key
    return keys


def _read_key(name: str, table: Any) -> tuple[str, ApiKey]:
    if not isinstance(table, dict):
        raise ConfigError(f"keys.{name} is no table")
    for field_name, value in table.items():
        if field_name not in _FIELDS:
            raise ConfigError(f"keys.{name} has {field_name!r}; the fields are {', '.join(_FIELDS)}")
        if type(value) is not _FIELDS[field_name]:
            raise ConfigError(f"keys.{name}.{field_name}={value!r} must be a {_FIELDS[field_name].__name__}")
        if field_name.endswith("_per_minute") and value < 1:
            raise ConfigError(f"keys.{name}.{field_name}={value} must be at least 1")
        if field_name == "cache_percent" and not 0 <= value <= 100:
            raise ConfigError(f"keys.{name}.cache_percent={value} must be from 0 to 100")
    if not table.get("key"):
        raise ConfigError(f"keys.{name} has no key")
    requests, tokens = Quota(table.get("requests_per_minute")), Quota(table.get("tokens_per_minute"))
    return table["key"], ApiKey(
        name, table.get("namespace", name), table.get("priority", 0), requests, tokens, table.get("cache_percent")
    )


def _digest(secret: str) -> bytes:
    # Equal lengths, so that the comparison does not tell how long a key is.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
