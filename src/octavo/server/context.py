"""What all requests of one server share.

Owns: the parts and how routes get at them. Must not know: what they do.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

from octavo.server.config import ServerConfig
from octavo.server.engine_thread import EngineThread
from octavo.server.errors import ApiError
from octavo.server.events import EventBus
from octavo.server.grammars import GrammarStore
from octavo.server.keys import KeyRing
from octavo.server.metrics import ServerMetrics
from octavo.server.response_store import ResponseStore
from octavo.server.served_model import ServedModel

if TYPE_CHECKING:
    from octavo.engine.stats import EngineStats

STATS_SECONDS = 2.0  # how long to wait for the figures before showing the last known ones


@dataclass
class ServerContext:
    """One server.

    Attributes:
        is_draining: no new request is taken.
    """

    config: ServerConfig
    model: ServedModel
    engine: EngineThread
    metrics: ServerMetrics
    events: EventBus
    keys: KeyRing
    grammars: GrammarStore
    responses: ResponseStore
    is_draining: bool = False

    async def latest_stats(self) -> "EngineStats | None":
        """Returns the engine's figures between two steps; None when it is dead or a step takes too long."""
        try:
            async with asyncio.timeout(STATS_SECONDS):
                return await self.engine.call(lambda engine: engine.stats())
        except (TimeoutError, ApiError):
            return None


async def get_context(request: Request) -> ServerContext:
    """Returns the context of the server that a request came to.

    It is a coroutine because FastAPI would run a plain function on another thread.
    """
    return request.app.state.context
