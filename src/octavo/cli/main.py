"""The command ``octavo``: finds the subcommand, and turns every error into one line and a hint.

Owns: the list of commands, exit statuses, the wording of errors. Must not know: what a command does.

Invariants:
1. A command's module is imported only when that command runs, so that ``octavo --version`` stays fast.
2. Exit status 0: done; 1: it failed; 2: the command line or a setting is wrong; 130: interrupted. Never a traceback for what
   users, files or networks do.
"""

import importlib
import os
import sys
from collections.abc import Sequence

import click

from octavo import __version__
from octavo.errors import ConfigError, OctavoError, RequestError

COMMANDS = {  # name -> what `octavo --help` says of it
    "generate": "Continue a text, given as an argument or on standard input.",
    "chat": "Talk with a model in the terminal.",
    "serve": "Serve a model over HTTP to OpenAI's clients.",
    "bench": "Measure a running server, or this machine.",
    "top": "Show what a running server does.",
    "session": "Save conversations of a running server with their KV, and load them again.",
    "pull": "Fetch a model's files, so that everything works offline afterwards.",
    "simulate": "Show what a machine would do with a workload, without running a model.",
    "plan": "Tell what fits on a machine, and for how many users, before anything is loaded.",
    "compare": "Answer the same conversations with and without paging, and show what paging buys.",
    "demo": "Answer 32 conversations at once in a small KV budget.",
}
FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run; each lives in the module of its name, as ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return importlib.import_module(f"octavo.cli.{name}").command if name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"octavo {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version.")
def cli() -> None:
    """A paged-attention inference engine for language models, for one machine and one memory."""


def _report(message: str, hint: str | None) -> None:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


def _usage_hint(error: click.UsageError) -> str:
    return f"{error.ctx.command_path if error.ctx else 'octavo'} --help shows what is allowed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: what follows the program's name; the process's own when not given.

    Returns:
        The exit status, as invariant 2 says.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return cli.main(given or ["--help"], prog_name="octavo", standalone_mode=False) or 0
    except click.UsageError as error:
        _report(error.format_message(), _usage_hint(error))
        return WRONG_USE
    except (ConfigError, RequestError) as error:
        _report(error.message, error.hint)
        return WRONG_USE
    except OctavoError as error:
        _report(error.message, error.hint)
        return FAILED
    except BrokenPipeError:  # the reader, e.g. `head`, has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the interpreter's last flush has a place to go
        return FAILED
    except OSError as error:
        _report(str(error), None)
        return FAILED
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)
        return INTERRUPTED
