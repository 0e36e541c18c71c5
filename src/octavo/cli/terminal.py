"""What the commands share about the terminal: progress bars, and an interruption that is asked for rather than thrown.

Owns: the bars' look. Must not know: what is being done.

Invariants:
1. Bars and notes go to standard error, and only when it is a terminal: a redirected run prints results alone.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bar(unit: str) -> "Progress":
    """Returns a progress bar that counts ``unit``; it shows nothing when standard error is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


@contextmanager
def working(text: str) -> Iterator[None]:
    """Shows ``text`` while the body runs; nothing when standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    click.echo(f"{text} …", err=True, nl=False)
    try:
        yield
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)  # back to the line's start, and erase it


def piped_lines() -> Iterator[str]:
    """Yields the lines of standard input, with their ends.

    Raises:
        click.UsageError: what comes is not UTF-8.
    """
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            message = f"line {number} of standard input is not UTF-8 text"
            raise click.UsageError(message, click.get_current_context(silent=True)) from error


class Interruption:
    """Turns the first Ctrl-C inside its ``with`` body into a flag; a second one raises KeyboardInterrupt as usual.

    A step of the engine is then never torn in the middle by an exception.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> "Interruption":
        self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
