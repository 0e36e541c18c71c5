"""Runs as a process of its own: serves a tiny random model with wide K and V. Arguments: engine settings as name=value."""

import sys
from dataclasses import replace

from engine.tiny_engine import TinyModels, full_attention
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.http_server import open_sockets, serve, set_up_logging

WIDE = replace(
    full_attention(), head_dim=128, num_layers=4, windows=(None,) * 4, layer_rotaries=(0,) * 4, rotaries=full_attention().rotaries
)

if __name__ == "__main__":
    settings = dict(argument.split("=") for argument in sys.argv[1:])
    config = ServerConfig(port=0)
    set_up_logging(config)
    serve(create_app(TinyModels().engine(spec=WIDE, **settings), config), config, open_sockets(config))
