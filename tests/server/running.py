"""A server on a free port, in a thread of the test's process, so that the test can look into the engine."""

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI
from openai import AsyncOpenAI, OpenAI

from octavo.engine.engine import Engine
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.http_server import HttpServer, open_sockets, uvicorn_config
from server.scripted import make_engine

TIMEOUT_SECONDS = 20.0


@dataclass
class RunningServer:
    """A server that runs.

    Attributes:
        http: a client with the server's address.
        clients: what is closed with the server.
    """

    url: str
    engine: Engine
    app: FastAPI
    http: httpx.Client
    clients: ExitStack

    def openai(self, **settings: Any) -> OpenAI:
        """Returns a client that is closed with the server: one left to the garbage collector may warn of its socket in any test."""
        options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": TIMEOUT_SECONDS}
        return self.clients.enter_context(OpenAI(base_url=f"{self.url}/v1", **options, **settings))

    @asynccontextmanager
    async def async_openai(self) -> AsyncIterator[AsyncOpenAI]:
        options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": TIMEOUT_SECONDS}
        async with AsyncOpenAI(base_url=f"{self.url}/v1", **options) as client:
            yield client

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json=fields)

    def chat(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=fields)

    def wait_until_idle(self, seconds: float = 2.0) -> None:
        """Fails if the engine still has work or live blocks after that time."""
        deadline = time.monotonic() + seconds
        while self.engine.has_unfinished_requests or self.engine.stats().memory.num_used_blocks:
            assert time.monotonic() < deadline, f"still {self.engine.num_unfinished_requests} requests in the engine"
            time.sleep(0.005)
        self.engine.check_invariants()
        memory = self.engine.stats().memory
        assert memory.num_free_blocks + memory.num_cached_blocks == memory.num_blocks


@contextmanager
def running_server(engine: Engine | None = None, **settings: Any) -> Iterator[RunningServer]:
    """Runs a server, by default on a scripted engine, and checks at the end that nothing is left in it."""
    engine = engine or make_engine()
    config = ServerConfig(port=0, **settings)
    app = create_app(engine, config)
    server = HttpServer(uvicorn_config(app, config), app.state.context)
    thread = threading.Thread(target=server.run, args=(open_sockets(config),))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.002)
        url = f"http://127.0.0.1:{server.port}"
        with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS) as http, ExitStack() as clients:
            yield RunningServer(url, engine, app, http, clients)
    finally:
        server.should_exit = True
        thread.join()
