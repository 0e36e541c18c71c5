"""``/octavo/prefixes``: beginnings of prompts that are computed ahead, and pinned.

Owns: the bodies. Must not know: how blocks are kept.
"""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field, FiniteFloat

from octavo.engine.request import namespace_of
from octavo.engine.retain import PinnedPrefix
from octavo.server.body import JsonRoute
from octavo.server.call import Call, get_call
from octavo.server.computing import PromptFields, compute_prompt
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import ApiError, invalid
from octavo.server.protocol.base import ERROR_RESPONSES, Name, ResponseBody, RetainFields

router = APIRouter(route_class=JsonRoute, prefix="/octavo", tags=["prefixes"], responses=ERROR_RESPONSES)
Context = Annotated[ServerContext, Depends(get_context)]
ThisCall = Annotated[Call, Depends(get_call)]


class PrefixRequest(PromptFields, RetainFields):
    """Computes a prefix, given as a prompt or as messages, so that requests that begin with it find it in memory.

    Attributes:
        pin: keep its blocks before all others.
        ttl_s: seconds after which a pin is released by itself; none if not given.
    """

    pin: bool | None = None
    ttl_s: Annotated[FiniteFloat, Field(gt=0)] | None = None


class PinnedPrefixEntry(ResponseBody):
    """A pinned prefix; ``seconds_left`` is null for one that stays until it is deleted."""

    id: str
    num_tokens: int
    num_cached_tokens: int
    seconds_left: float | None


class PrefixResponse(ResponseBody):
    """A prefix that was computed; ``pinned`` is null for one that is not pinned."""

    num_tokens: int
    num_computed_tokens: int
    pinned: PinnedPrefixEntry | None


class PrefixList(ResponseBody):
    """The pins of the caller's namespace, and how many blocks all pins hold and may hold."""

    prefixes: list[PinnedPrefixEntry]
    num_pinned_blocks: int
    max_pinned_blocks: int


class ReleasedPrefix(ResponseBody):
    """A pin that was released."""

    id: str
    released: bool = True


@router.post("/prefixes")
async def keep_prefix(body: PrefixRequest, request: Request, context: Context, call: ThisCall) -> PrefixResponse:
    """Computes a prefix ahead of the requests that begin with it, and pins it if asked to."""
    context.model.check_name(body.model)
    if body.ttl_s is not None and not body.pin:
        raise invalid("ttl_s", "ttl_s is allowed only with pin=true; retain has one of its own")
    result = await compute_prompt(body, request, context, call)
    token_ids, pinned = result.prompt_token_ids, None
    if body.pin:
        namespace = namespace_of(call.salt(body.cache_salt))
        pinned = _entry(await context.engine.call(lambda engine: engine.prefixes.pin(token_ids, namespace, ttl_s=body.ttl_s)))
    return PrefixResponse(
        num_tokens=len(token_ids), num_computed_tokens=len(token_ids) - result.num_prefix_hit_tokens, pinned=pinned
    )


@router.get("/prefixes")
async def list_prefixes(context: Context, call: ThisCall, cache_salt: Name | None = None) -> PrefixList:
    """Lists the pins of a salt, or of requests without one."""
    namespace = namespace_of(call.salt(cache_salt))
    listed, share = await context.engine.call(lambda engine: (engine.prefixes.list(namespace), engine.prefixes.share()))
    return PrefixList(prefixes=list(map(_entry, listed)), num_pinned_blocks=share[0], max_pinned_blocks=share[1])


@router.delete("/prefixes/{prefix_id}")
async def release_prefix(prefix_id: str, context: Context, call: ThisCall, cache_salt: Name | None = None) -> ReleasedPrefix:
    """Releases a pin; its blocks stay cached as any others."""
    namespace = namespace_of(call.salt(cache_salt))
    if not await context.engine.call(lambda engine: engine.prefixes.release(prefix_id, namespace)):
        raise ApiError(404, f"no prefix {prefix_id[:100]!r} is pinned", param="prefix_id")
    return ReleasedPrefix(id=prefix_id)


def _entry(pinned: PinnedPrefix) -> PinnedPrefixEntry:
    return PinnedPrefixEntry(**asdict(pinned))
