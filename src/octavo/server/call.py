"""One HTTP request on its way through the server.

Owns: what is known of the request besides its body: its id, who sent it, what the access log will say. Must not know: the engine.
"""

import secrets
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from octavo.server.errors import invalid
from octavo.server.keys import ANONYMOUS, ApiKey

MAX_ID_CHARS = 128


@dataclass
class Call:
    """One HTTP request.

    Attributes:
        request_id: the client's name for it, or a random one.
        key: whose it is.
        log: further fields for the access log.
        is_gone: the client closed the connection before it had its answer.
    """

    request_id: str
    key: ApiKey = ANONYMOUS
    log: dict[str, Any] = field(default_factory=dict)
    is_gone: bool = False

    def take_request_id(self, request_id: str | None) -> None:
        """Takes the id from the body, if there is one; it counts before the header's."""
        if request_id is not None:
            self.request_id = request_id

    def salt(self, cache_salt: str | None) -> str | None:
        """Returns the salt of the request's prompts: keys with different namespaces never share KV, whatever salt they send."""
        if self.key.namespace is None:
            return cache_salt
        return f"{self.key.namespace}\0{cache_salt or ''}"

    def may_share(self, cache_salt: str | None) -> bool:
        """Returns whether KV of this salt, as `salt` makes it, is inside the key's namespace."""
        tenant, separator, _ = (cache_salt or "").partition("\0")
        return (tenant if separator else None) == self.key.namespace

    def priority(self, priority: int | None) -> int:
        """Returns the request's priority: a key's own is the best that its requests can have."""
        return self.key.priority if priority is None else max(priority, self.key.priority)


def new_call(header_id: str | None) -> Call:
    """Returns the record of a request that just came in.

    Raises:
        ApiError: the client's id is too long or has characters that a header cannot show.
    """
    if not header_id:
        return Call(secrets.token_hex(12))
    if len(header_id) > MAX_ID_CHARS or not all("!" <= character <= "~" for character in header_id):
        raise invalid("X-Request-Id", f"X-Request-Id must be 1 to {MAX_ID_CHARS} visible ASCII characters")
    return Call(header_id)


def call_of(request: Request) -> Call:
    """Returns the record that the gate made for a request."""
    return request.scope["octavo.call"]


async def get_call(request: Request) -> Call:
    """The same as a dependency of routes; a coroutine, because FastAPI would run a plain function on another thread."""
    return call_of(request)
