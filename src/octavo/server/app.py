"""The application: all routes around one engine.

Owns: how the parts are put together, and the engine thread's life. Must not know: sockets, signals.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import octavo
from octavo.outputs import RequestOutput
from octavo.server.access_log import AccessLog
from octavo.server.config import ServerConfig
from octavo.server.context import ServerContext
from octavo.server.engine_thread import EngineThread
from octavo.server.errors import install_handlers
from octavo.server.events import EventBus
from octavo.server.gate import Gate
from octavo.server.grammars import GrammarStore
from octavo.server.keys import read_keys
from octavo.server.metrics import ServerMetrics
from octavo.server.openapi import Api
from octavo.server.response_store import ResponseStore
from octavo.server.routes import (
    branching,
    chat,
    completions,
    embeddings,
    health,
    inspection,
    messages,
    models,
    prefixes,
    responses,
    sessions,
    tokens,
)
from octavo.server.served_model import describe_model
from octavo.server.submission import Submission
from octavo.server.tracing import RequestTracer, make_tracer

if TYPE_CHECKING:
    from octavo.engine.engine import Engine

DESCRIPTION = 'An OpenAI-compatible server. Errors have the form `{"error": {"message", "type", "param", "code"}}`.'


class Recorder:
    """Tells metrics, quotas, traces and listeners what the engine did."""

    def __init__(self, metrics: ServerMetrics, events: EventBus, tracer: RequestTracer | None):
        self._metrics = metrics
        self._events = events
        self._tracer = tracer

    def on_accepted(self, submissions: list[Submission]) -> None:
        for submission in submissions:
            num_tokens = len(submission.prompt_token_ids)
            self._events.publish({"type": "request_accepted", "request_id": submission.request_id, "prompt_tokens": num_tokens})

    def on_token_intervals(self, seconds: list[float]) -> None:
        self._metrics.observe_token_intervals(seconds)

    def on_event(self, event: dict[str, Any]) -> None:
        self._events.publish(event)

    def on_finished(self, submission: Submission, result: RequestOutput) -> None:
        self._metrics.observe_finished(result)
        if self._tracer is not None:
            self._tracer.trace(result)
        num_generated = result.num_generated_tokens
        submission.key.tokens.charge(len(result.prompt_token_ids) + num_generated)
        reasons = [output.finish_reason for output in result.outputs]
        self._events.publish(
            {"type": "request_finished", "request_id": result.request_id, "completion_tokens": num_generated, "reasons": reasons}
        )


def create_app(engine: "Engine", config: ServerConfig) -> FastAPI:
    """Makes the application around an engine, which belongs to it from then on.

    Raises:
        ConfigError: the key file is wrong, or traces are wanted and OpenTelemetry is not installed.
    """
    model = describe_model(engine, config.served_model_name)
    metrics = ServerMetrics(model.name)
    events = EventBus()
    tracer = make_tracer(config.otlp_endpoint, model.name)
    thread = EngineThread(engine, Recorder(metrics, events, tracer), config)
    grammars = GrammarStore(engine.grammar_compiler(), config)
    keys = read_keys(config.api_key, config.api_keys)
    for namespace, percent in keys.cache_percents().items():
        engine.set_tenant_quota(namespace, percent)
    context = ServerContext(config, model, thread, metrics, events, keys, grammars, ResponseStore())
    app = make_api()
    app.state.context = context
    app.state.engine = engine
    app.state.tracer = tracer
    app.add_middleware(Gate, context=context, access_log=AccessLog(as_json=config.log_json))
    if config.allowed_origins:  # outside the gate: a browser asks what is allowed without sending the key
        app.add_middleware(
            CORSMiddleware, allow_origins=config.allowed_origins, allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"]
        )
    return app


def make_api() -> FastAPI:
    """Returns the routes alone, without an engine: enough for the OpenAPI document."""
    app = Api(title="Octavo", description=DESCRIPTION, version=octavo.__version__, lifespan=_lifespan)
    install_handlers(app)
    for routes in (
        chat,
        completions,
        messages,
        responses,
        embeddings,
        models,
        tokens,
        health,
        inspection,
        branching,
        prefixes,
        sessions,
    ):
        app.include_router(routes.router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    thread = app.state.context.engine
    thread.start()
    yield
    thread.stop()
    if app.state.tracer is not None:
        app.state.tracer.close()
    if not thread.is_alive:
        app.state.engine.close()
