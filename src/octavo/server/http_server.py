"""The process that serves: socket, signals, orderly end.

Owns: uvicorn's settings, and what SIGTERM and SIGINT do. Must not know: routes, engines.

Invariants:
1. After the first signal new requests are answered 503, and those in the server may finish until ``drain_seconds`` have passed;
   then they end where they stand, each with its finish reason.
2. After the second signal the process ends at once.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from types import FrameType

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from octavo.errors import ConfigError
from octavo.server.config import ServerConfig
from octavo.server.context import ServerContext
from octavo.server.errors import ApiError

SWITCH_SECONDS = 0.0005  # the engine's thread, back from computing, must not wait long for the interpreter
KEEP_ALIVE_SECONDS = 75
MAX_HEADER_BYTES = 64 * 2**10
SEND_BUFFER_BYTES = 128 * 2**10  # what the system holds for a reader; left to itself, some megabytes for one that does not read
FLUSH_SECONDS = 5  # what responses that ended get to leave the socket
logger = logging.getLogger("octavo.server")


def timed_protocol(seconds: float) -> type[H11Protocol]:
    """Returns uvicorn's protocol with a limit on the time that a client may take for the head of a request."""

    class TimedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._watch_head(is_incomplete=True)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_head(is_incomplete=self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0]))

        def connection_lost(self, exc: Exception | None) -> None:
            self._watch_head(is_incomplete=False)
            super().connection_lost(exc)

        def _watch_head(self, *, is_incomplete: bool) -> None:
            if is_incomplete and self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.close)
            elif not is_incomplete and self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return TimedProtocol


class HttpServer(uvicorn.Server):
    """Uvicorn with a drain before its end."""

    def __init__(self, config: uvicorn.Config, context: ServerContext):
        super().__init__(config)
        self._context = context
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self.servers[0].sockets[0].getsockname()[1]

    async def startup(self, sockets: list | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if not self.started:
            return
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        logger.info("serving %s on http://%s:%d", self._context.model.name, host, self.port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to drain; the second time, ends the process."""
        if self._context.is_draining or self._loop is None:
            os._exit(128 + sig)
        self._context.is_draining = True
        self._loop.call_soon_threadsafe(self._start_drain, sig)

    def _start_drain(self, sig: int) -> None:
        logger.info("%s: finishing %d requests", signal.Signals(sig).name, self._context.engine.num_answers)
        self._drain = asyncio.create_task(self._finish_requests())

    async def _finish_requests(self) -> None:
        engine = self._context.engine
        try:
            async with asyncio.timeout(self._context.config.drain_seconds):
                while engine.num_answers:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            logger.warning("%d requests are cut short", engine.num_answers)
            engine.cut_all_short(ApiError(503, "the server is shutting down", code="draining"))
        self.should_exit = True


def open_sockets(config: ServerConfig) -> list[socket.socket]:
    """Takes the address to serve on; who asks there is refused until `serve` listens.

    Raises:
        ConfigError: it is not an address of this machine, or somebody has it.
    """
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
    except OSError as cause:
        hint = "--host takes an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them"
        raise ConfigError(f"host={config.host!r} cannot be found: {cause.strerror}", hint=hint) from cause
    addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
    return [_open_socket(family, address) for family, address in addresses][: None if config.port else 1]


def _open_socket(family: int, address: tuple) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # connections inherit it
    if family == socket.AF_INET6:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        opened.bind(address)
    except OSError as cause:
        opened.close()
        raise ConfigError(
            f"host={address[0]!r}, port={address[1]} cannot be listened on: {cause.strerror}",
            hint="--port takes another one (0: any that is free), --host another address of this machine",
        ) from cause
    return opened


def serve(app: FastAPI, config: ServerConfig, sockets: list[socket.socket]) -> None:
    """Serves until a signal ends it."""
    if config.is_exposed_without_key:
        logger.warning("listening on %s without a key: anyone who reaches this machine can use the model", config.host)
    sys.setswitchinterval(SWITCH_SECONDS)
    HttpServer(uvicorn_config(app, config), app.state.context).run(sockets)


def uvicorn_config(app: FastAPI, config: ServerConfig) -> uvicorn.Config:
    """Returns uvicorn's settings."""
    return uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=FLUSH_SECONDS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        http=timed_protocol(config.read_seconds),
        ws="none",
    )


def set_up_logging(config: ServerConfig) -> None:
    """Sends the log of the server to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s" if config.log_json else "%(asctime)s %(levelname)s %(message)s"))
    for name in ("octavo", "uvicorn"):
        named = logging.getLogger(name)
        named.handlers = [handler]
        named.setLevel(logging.INFO if name == "octavo" else logging.WARNING)
        named.propagate = False
