"""``/octavo/sessions``: conversations that are saved with their KV, and loaded again.

Owns: the bodies, and which part of the work happens on which thread. Must not know: the file's form, how paths are made.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from octavo.engine.request import namespace_of
from octavo.engine.sessions import SessionInfo, Sessions
from octavo.errors import SnapshotError
from octavo.server.body import JsonRoute
from octavo.server.call import Call, get_call
from octavo.server.computing import PromptFields, compute_prompt
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import ApiError, invalid
from octavo.server.protocol.base import ERROR_RESPONSES, Name, ResponseBody
from octavo.server.protocol.chat import ConversationFields
from octavo.server.session_directory import SESSION_NAME, SessionDirectory

router = APIRouter(route_class=JsonRoute, prefix="/octavo", tags=["sessions"], responses=ERROR_RESPONSES)
Context = Annotated[ServerContext, Depends(get_context)]
ThisCall = Annotated[Call, Depends(get_call)]


class SessionRequest(PromptFields):
    """Saves a conversation, given as a prompt or as messages, under a name; or loads the one of that name."""

    name: Annotated[str, Field(pattern=SESSION_NAME)]
    action: Literal["save", "load"]


class SessionResponse(ResponseBody):
    """A session that was saved or loaded.

    Attributes:
        num_tokens: of the conversation.
        num_cached_tokens: those whose KV is in memory now.
    """

    name: str
    num_tokens: int
    num_cached_tokens: int
    num_bytes: int


class SessionEntry(ResponseBody):
    """A saved session; ``saved_at`` is in seconds since 1970."""

    name: str
    num_tokens: int
    num_bytes: int
    saved_at: float


class SessionList(ResponseBody):
    """The saved sessions of the caller's namespace."""

    sessions: list[SessionEntry]


@router.post("/sessions")
async def use_session(body: SessionRequest, request: Request, context: Context, call: ThisCall) -> SessionResponse:
    """Saves a conversation with its KV, or brings a saved one back into memory; other requests go on meanwhile."""
    context.model.check_name(body.model)
    directory, sessions = await _open_directory(context)
    namespace = namespace_of(call.salt(body.cache_salt))
    path = directory.path(body.name, namespace)
    if body.action == "save":
        computed = await compute_prompt(body, request, context, call)
        directory.make_room(namespace)
        info = await _save(context, sessions, path, computed.prompt_token_ids, namespace)
    else:
        for name in ("prompt", "messages", *ConversationFields.model_fields):
            if getattr(body, name) is not None:
                raise invalid(name, "a session that is loaded brings its own conversation")
        if not path.is_file():
            raise ApiError(404, f"there is no session {body.name!r}", param="name")
        info = await _load(context, sessions, path, namespace)
    return SessionResponse(
        name=body.name, num_tokens=len(info.token_ids), num_cached_tokens=info.num_tokens, num_bytes=info.num_bytes
    )


@router.get("/sessions")
async def list_sessions(context: Context, call: ThisCall, cache_salt: Name | None = None) -> SessionList:
    """Lists the sessions that the caller's key and this salt can load."""
    directory, _ = await _open_directory(context)
    listed = await asyncio.to_thread(directory.list, namespace_of(call.salt(cache_salt)))
    return SessionList(sessions=[SessionEntry(**vars(session)) for session in listed])


async def _open_directory(context: ServerContext) -> tuple[SessionDirectory, Sessions]:
    sessions = await context.engine.call(lambda engine: engine.sessions)
    if context.config.session_dir is None or sessions is None:
        raise ApiError(404, "this server keeps no sessions; start it with session_dir", code="sessions_off")
    return SessionDirectory(Path(context.config.session_dir)), sessions


async def _save(context: ServerContext, sessions: Sessions, path: Path, token_ids: list[int], namespace: object) -> SessionInfo:
    await asyncio.to_thread(sessions.prepare)
    held = await context.engine.call(lambda _: sessions.hold(token_ids, namespace))
    try:
        return await asyncio.to_thread(sessions.write, held, path)
    except SnapshotError as cause:  # the disk's fault, not the client's
        raise ApiError(500, cause.message) from cause
    finally:
        await context.engine.call(lambda _: sessions.let_go(held))


async def _load(context: ServerContext, sessions: Sessions, path: Path, namespace: object) -> SessionInfo:
    file = await asyncio.to_thread(sessions.open, path, namespace)
    loading = await context.engine.call(lambda _: sessions.begin(file, namespace))
    try:
        await asyncio.to_thread(sessions.read, loading)
    finally:
        info = await context.engine.call(lambda _: sessions.finish(loading))
    return info
