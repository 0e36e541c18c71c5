"""``octavo serve``: serves a model over HTTP.

Owns: the order of start-up. Must not know: HTTP.
"""

import logging
from typing import Any

import click

from octavo.cli.options import given_settings, settings_options, with_options
from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.server.config import ServerConfig

logger = logging.getLogger("octavo.server")


@with_options(*settings_options(ServerConfig), *settings_options(EngineConfig, skip=["model"]))
@click.command("serve")
@click.argument("model", default=DEFAULT_MODEL)
def command(model: str, **options: Any) -> None:
    """Serve MODEL with the interfaces that OpenAI's clients speak, on http://127.0.0.1:8000 unless told otherwise.

    SIGTERM or Ctrl-C lets running requests finish; the second one ends the process at once.
    """
    config = ServerConfig(**given_settings(ServerConfig, options))
    engine_config = EngineConfig(model=model, **given_settings(EngineConfig, options))
    from octavo.engine.loading import load_engine
    from octavo.server.app import create_app
    from octavo.server.http_server import open_sockets, serve, set_up_logging

    set_up_logging(config)
    sockets = open_sockets(config)  # before the weights are read: somebody may have the port
    engine = load_engine(engine_config)
    if engine.guard is not None:
        for line in engine.guard.budget.lines():
            logger.info("memory: %s", line)
    serve(create_app(engine, config), config, sockets)
