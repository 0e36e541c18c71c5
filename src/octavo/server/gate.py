"""The outermost layer: what happens to every HTTP request whatever its path.

Owns: request ids, keys and quotas, draining, the reading of bodies, the access log. Must not know: routes, bodies' contents.

Invariants:
1. Without a right key nothing but `OPEN_PATHS` answers; the path plays no other part in it.
2. No more than ``max_body_bytes`` of a body are ever held.
3. Every request has one line in the access log, and its id in the header ``X-Request-Id``.
"""

import asyncio
import logging
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.access_log import AccessLog
from octavo.server.call import Call, new_call
from octavo.server.context import ServerContext
from octavo.server.errors import ApiError, invalid
from octavo.server.keys import ANONYMOUS, ApiKey

OPEN_PATHS = frozenset({"/health", "/ready"})
WATCHING_PATHS = OPEN_PATHS | {"/metrics"}  # answered while draining
DISCARD_SECONDS = 10.0  # how long the rest of a refused body is read, so that the client gets to see why
AMBIGUOUS_LENGTH = "ambiguous_length"
GONE_STATUS = 499  # in the log only: the client left before its answer
logger = logging.getLogger("octavo.server")


class Gate:
    """An ASGI layer around the application."""

    def __init__(self, app: ASGIApp, context: ServerContext, access_log: AccessLog):
        self._app = app
        self._context = context
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        call, refusal = _make_call(Headers(scope=scope))
        scope["octavo.call"] = call
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", call.request_id.encode())]
            await send(message)

        try:
            _check_body_form(Headers(scope=scope))  # first: it decides whether the connection can go on
            if refusal is not None:
                raise refusal
            self._admit(scope, call)
            body = await self._read_body(Headers(scope=scope), receive)
            await self._app(scope, _replay(body, receive), send_with_id)
        except ApiError as error:
            response = error.response(scope["path"])
            if error.code == AMBIGUOUS_LENGTH:  # what comes next on this connection may be meant as this request's body
                response.headers["Connection"] = "close"
            await response(scope, receive, send_with_id)
        except Exception:  # whatever a route does, its client gets an answer and the server goes on
            logger.exception("request %s failed", call.request_id)
            if status:
                raise
            failed = ApiError(500, "the server failed on this request; its log says how")
            await failed.response(scope["path"])(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            self._access_log.write(scope, call, status=GONE_STATUS if call.is_gone else status, seconds=seconds)

    # ---- who may pass

    def _admit(self, scope: Scope, call: Call) -> None:
        path = scope["path"]
        if path in OPEN_PATHS:
            return
        call.key = self._identify(Headers(scope=scope))
        if self._context.is_draining and path not in WATCHING_PATHS:
            raise ApiError(503, "the server is shutting down", code="draining")
        if scope["method"] == "POST":
            self._charge(call.key)

    def _identify(self, headers: Headers) -> ApiKey:
        if self._context.keys.is_empty:
            return ANONYMOUS
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            secret = headers.get("x-api-key", "")
        key = self._context.keys.find(secret.strip())
        if key is None:
            raise ApiError(401, "the API key is missing or wrong: send it as Authorization: Bearer KEY")
        return key

    @staticmethod
    def _charge(key: ApiKey) -> None:
        seconds = key.seconds_until_free()
        if seconds > 0:
            raise ApiError(429, f"the quota of key {key.name} is used up", code="quota_exceeded", retry_after_seconds=seconds)
        key.requests.charge(1)

    # ---- bodies

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._context.config.max_body_bytes
        declared = headers.get("content-length", "0")
        body = bytearray()
        try:
            async with asyncio.timeout(self._context.config.read_seconds):
                async for piece in _pieces(receive):
                    if int(declared) > limit or len(body) + len(piece) > limit:
                        await _discard(receive)
                        raise ApiError(413, f"the body is larger than max_body_bytes={limit}")
                    body += piece
        except TimeoutError as cause:
            raise ApiError(400, f"the body did not arrive within {self._context.config.read_seconds} s", code="timeout") from cause
        return bytes(body)


def _make_call(headers: Headers) -> tuple[Call, ApiError | None]:
    try:
        return new_call(headers.get("x-request-id")), None
    except ApiError as error:
        return new_call(None), error


def _check_body_form(headers: Headers) -> None:
    """Refuses bodies that would not be read as they were meant."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise invalid("Content-Encoding", "Content-Encoding is not supported: send the body as it is")
    if "content-length" in headers and "transfer-encoding" in headers:
        message = "a request has Content-Length or Transfer-Encoding, not both"
        raise ApiError(400, message, param="Content-Length", code=AMBIGUOUS_LENGTH)


async def _pieces(receive: Receive):
    """Yields a body piece by piece; an interrupted one ends early."""
    more_body = True
    while more_body:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        yield message.get("body", b"")
        more_body = message.get("more_body", False)


async def _discard(receive: Receive) -> None:
    """Reads on without keeping anything."""
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            async for _ in _pieces(receive):
                pass
    except TimeoutError:
        return


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a channel that first gives a body that was read already."""
    waiting = [body]

    async def receive_again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return receive_again
