"""``octavo generate``: continues one text and writes the answer as it comes.

Owns: where the prompt comes from. Must not know: how tokens are made.
"""

import sys
from dataclasses import replace
from typing import Any

import click

from octavo.cli.options import given_sampling, given_settings, sampling_options, settings_options, with_options
from octavo.cli.terminal import Interruption, piped_lines, working
from octavo.config import EngineConfig

DEFAULT_MAX_TOKENS = 256  # the library's default of 16 suits a benchmark better than a reader


@with_options(*sampling_options(), *settings_options(EngineConfig))
@click.command("generate")
@click.argument("prompt", required=False)
def command(prompt: str | None, **options: Any) -> None:
    """Continue PROMPT, or standard input when PROMPT is - or left out, as plain text: no chat template is applied.

    Sampling options that are not given come from the model's generation_config.json.
    """
    text = _read_prompt(prompt)
    from octavo import LLM

    with working("loading the model"):
        llm = LLM(**given_settings(EngineConfig, options))
    params = replace(llm.engine.default_params, **{"max_tokens": DEFAULT_MAX_TOKENS, **given_sampling(options)})
    with Interruption() as interruption:
        for piece in llm.stream(text, params):
            click.echo(piece, nl=False)
            if interruption.requested:
                break
    click.echo()
    if interruption.requested:
        raise KeyboardInterrupt


def _read_prompt(argument: str | None) -> str:
    if argument not in (None, "-"):
        return argument
    if sys.stdin.isatty():
        raise click.UsageError("there is no prompt: give one as an argument or on standard input", click.get_current_context())
    return "".join(piped_lines()).removesuffix("\n")
