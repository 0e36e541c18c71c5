"""Runs as a process of its own: serves a scripted engine. Arguments: seconds of a step, then settings as name=value."""

import sys

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.http_server import open_sockets, serve, set_up_logging
from server.scripted import make_engine

if __name__ == "__main__":
    settings = dict(argument.split("=") for argument in sys.argv[2:])
    config = ServerConfig(
        **{"port": 0} | {name: value == "yes" if value in ("yes", "no") else int(value) for name, value in settings.items()}
    )
    set_up_logging(config)
    serve(create_app(make_engine(step_seconds=float(sys.argv[1])), config), config, open_sockets(config))
