"""A stand-in for `octavo.LLM` that answers from a list, for tests of the command line."""

import io
import os
import signal
from collections.abc import Iterator
from typing import Any

from octavo.sampling_params import SamplingParams

INTERRUPT = object()  # among the pieces: the user presses Ctrl-C here


class Terminal(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def piped(data: bytes) -> io.TextIOWrapper:
    """Returns standard input that comes from another program."""
    return io.TextIOWrapper(io.BytesIO(data))


class FakeLLM:
    """Streams ``pieces`` for every question, and remembers what it was asked."""

    pieces: list[Any]

    def __init__(self, pieces: list[Any]):
        self.pieces = pieces
        self.settings: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.params: list[SamplingParams] = []
        self.num_streams_closed = 0

    def __call__(self, **settings: Any) -> "FakeLLM":
        """Stands for the constructor."""
        self.settings = settings
        return self

    @property
    def engine(self) -> "FakeLLM":
        """Stands for the engine, of which the command line asks the default parameters."""
        return self

    @property
    def default_params(self) -> SamplingParams:
        return SamplingParams(temperature=0.25)

    def stream(self, prompt: Any, params: SamplingParams) -> Iterator[str]:
        self.asked.append(prompt)
        self.params.append(params)
        try:
            for piece in self.pieces:
                if piece is INTERRUPT:
                    os.kill(os.getpid(), signal.SIGINT)
                elif isinstance(piece, Exception):
                    raise piece
                else:
                    yield piece
        finally:
            self.num_streams_closed += 1
