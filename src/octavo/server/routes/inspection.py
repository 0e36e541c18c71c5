"""``/octavo/…``: why a request was slow, its end on demand, what every block holds, and what happens.

Owns: the bodies. Must not know: how they are found out.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from octavo.engine.block_map import BlockMap
from octavo.engine.explanation import RequestExplanation
from octavo.server.call import Call, get_call
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import ApiError
from octavo.server.generation import event
from octavo.server.protocol.base import ERROR_RESPONSES

PULSE_SECONDS = 1.0  # how often an event stream looks at the blocks
router = APIRouter(prefix="/octavo", tags=["inspection"], responses=ERROR_RESPONSES)
Context = Annotated[ServerContext, Depends(get_context)]


@router.get("/requests")
async def list_requests(context: Context) -> list[RequestExplanation]:
    """Explains every request whose answer is not whole yet."""
    names = context.engine.request_ids
    found = await context.engine.call(lambda engine: [engine.explain(name) for name in names])
    return [explanation for explanation in found if explanation is not None]


@router.get("/requests/{request_id:path}")
async def explain_request(request_id: str, context: Context) -> RequestExplanation:
    """Explains a request that is in the engine or left it lately.

    It says what the request waited for, what the prefix cache gave, and who took its blocks. Of a request with several prompts,
    each has an id of its own: the request's with `-0`, `-1`, … appended.
    """
    explanation = await context.engine.call(lambda engine: engine.explain(request_id))
    if explanation is None:
        raise ApiError(404, f"no request {request_id[:100]!r} is in the engine or left it lately", param="request_id")
    return explanation


@router.delete("/requests/{request_id:path}")
async def cancel_request(request_id: str, context: Context, call: Annotated[Call, Depends(get_call)]) -> RequestExplanation:
    """Cancels a request and returns what became of it; a request with several prompts goes as a whole.

    Its blocks are free when this answers. Its own client gets what was generated, with the finish reason `abort`, or the error
    `cancelled` where nothing was.
    """
    cancelled = ApiError(400, "the request was cancelled", code="cancelled")
    explanation = await context.engine.cancel(request_id, call.key, cancelled)
    if explanation is None:
        raise ApiError(404, f"no request {request_id[:100]!r} of this key is in the engine", param="request_id")
    return explanation


@router.get("/blocks")
async def get_blocks(context: Context) -> BlockMap:
    """Returns the block map: every block that is not free, who holds it, and when it would be dropped."""
    return await context.engine.call(lambda engine: engine.block_map())


@router.get("/events", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
async def stream_events(request: Request, context: Context) -> StreamingResponse:
    """Streams what happens: `request_accepted`, `request_finished`, `memory` when the pool gave way or came back, and once a second
    `blocks` where something changed."""
    return StreamingResponse(_events(request, context), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _events(request: Request, context: ServerContext) -> AsyncIterator[bytes]:
    shown: dict[str, Any] = {}
    with context.events.listen() as listener:
        while not context.is_draining and not await request.is_disconnected():
            figures = await _figures(context)
            if figures != shown:
                shown = figures
                yield event(shown)
            try:
                async with asyncio.timeout(PULSE_SECONDS):
                    events = await listener.take()
            except TimeoutError:
                continue
            yield b"".join(map(event, events))


async def _figures(context: ServerContext) -> dict[str, Any]:
    stats = await context.latest_stats()
    if stats is None:
        return {"type": "engine_busy"}
    memory = stats.memory
    return {
        "type": "blocks",
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "free": memory.num_free_blocks,
        "cached": memory.num_cached_blocks,
        "used": memory.num_used_blocks,
        "shared": memory.num_shared_blocks,
    }
