"""The application: all routes around one engine.

Owns: how the parts are put together, and the engine thread's life. Must not know: sockets, signals.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import octavo
from octavo.outputs import RequestOutput
from octavo.server.access_log import AccessLog
from octavo.server.config import ServerConfig
from octavo.server.context import ServerContext
from octavo.server.engine_thread import EngineThread, Submission
from octavo.server.errors import install_handlers
from octavo.server.gate import Gate
from octavo.server.keys import read_keys
from octavo.server.metrics import ServerMetrics
from octavo.server.routes import chat, completions, health, models, tokens
from octavo.server.served_model import describe_model

if TYPE_CHECKING:
    from octavo.engine.engine import Engine

DESCRIPTION = 'An OpenAI-compatible server. Errors have the form `{"error": {"message", "type", "param", "code"}}`.'


class Recorder:
    """Tells metrics and quotas what the engine did."""

    def __init__(self, metrics: ServerMetrics):
        self._metrics = metrics

    def on_token_intervals(self, seconds: list[float]) -> None:
        self._metrics.observe_token_intervals(seconds)

    def on_finished(self, submission: Submission, result: RequestOutput) -> None:
        self._metrics.observe_finished(result)
        num_generated = sum(len(output.token_ids) for output in result.outputs)
        submission.key.tokens.charge(len(result.prompt_token_ids) + num_generated)


def create_app(engine: "Engine", config: ServerConfig) -> FastAPI:
    """Makes the application around an engine, which belongs to it from then on.

    Raises:
        ConfigError: the key file is wrong.
    """
    model = describe_model(engine, config.served_model_name)
    metrics = ServerMetrics(model.name)
    thread = EngineThread(engine, Recorder(metrics), max_requests=config.max_requests, max_lag_tokens=config.max_lag_tokens)
    context = ServerContext(config, model, thread, metrics, read_keys(config.api_key, config.api_keys))
    app = FastAPI(title="Octavo", description=DESCRIPTION, version=octavo.__version__, lifespan=_lifespan)
    app.state.context = context
    install_handlers(app)
    for routes in (chat, completions, models, tokens, health):
        app.include_router(routes.router)
    app.add_middleware(Gate, context=context, access_log=AccessLog(as_json=config.log_json))
    if config.allowed_origins:  # outside the gate: a browser asks what is allowed without sending the key
        app.add_middleware(
            CORSMiddleware, allow_origins=config.allowed_origins, allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"]
        )
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    thread = app.state.context.engine
    thread.start()
    yield
    thread.stop()
