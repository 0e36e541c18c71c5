"""``/health``, ``/ready``, ``/version``, ``/metrics``.

Owns: what counts as live and as ready. Must not know: how the engine works.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST

import octavo
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import ApiError
from octavo.server.protocol.base import ERROR_RESPONSES, ResponseBody

router = APIRouter(tags=["operation"], responses=ERROR_RESPONSES)
Context = Annotated[ServerContext, Depends(get_context)]


class Status(ResponseBody):
    """The server is well."""

    status: Literal["ok"] = "ok"


class Version(ResponseBody):
    """The running version."""

    version: str


@router.get("/health")
async def get_health(context: Context) -> Status:
    """Says whether the process can still serve; 503 for good once the engine has died."""
    if not context.engine.is_alive:
        raise ApiError(503, "the engine has stopped; start the server again", code="engine_stopped")
    return Status()


@router.get("/ready")
async def get_ready(context: Context) -> Status:
    """Says whether it makes sense to send requests: the engine lives, gets on with its work, and the server is not draining."""
    await get_health(context)
    if context.is_draining:
        raise ApiError(503, "the server is shutting down", code="draining")
    if context.engine.is_stalled:
        raise ApiError(503, "the engine completes no step although there is work", code="stalled")
    return Status()


@router.get("/version")
async def get_version() -> Version:
    """Returns the version of the server."""
    return Version(version=octavo.__version__)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def get_metrics(context: Context) -> Response:
    """Returns all metrics in Prometheus' text form."""
    return Response(context.metrics.render(await context.latest_stats()), media_type=CONTENT_TYPE_LATEST)
