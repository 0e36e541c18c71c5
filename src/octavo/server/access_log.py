"""The access log: one line per request.

Owns: its form. Must not know: what the fields mean.

Invariants:
1. Prompts and answers are in it only if the settings ask for them.
2. A line is one line, whatever a client sends.
"""

import json
import logging
from typing import Any

from starlette.types import Scope

from octavo.server.call import Call

logger = logging.getLogger("octavo.access")


class AccessLog:
    """Writes lines as text or as JSON."""

    def __init__(self, *, as_json: bool):
        self._as_json = as_json

    def write(self, scope: Scope, call: Call, *, status: int, seconds: float) -> None:
        """Writes the line of a request that is over."""
        fields: dict[str, Any] = {
            "client": (scope.get("client") or ("-", 0))[0],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(1e3 * seconds, 1),
            "request_id": call.request_id,
            "key": call.key.name,
            **call.log,
        }
        logger.info("%s", json.dumps(fields) if self._as_json else _as_text(fields))


def _as_text(fields: dict[str, Any]) -> str:
    first = ("client", "method", "path", "status")
    lead = " ".join(json.dumps(str(fields[name])).strip('"') for name in first)
    return " ".join([lead, *(f"{name}={json.dumps(value)}" for name, value in fields.items() if name not in first)])
