"""``octavo chat``: a conversation in the terminal.

Owns: the conversation's messages and what the lines that start with a slash do. Must not know: templates or tokens.

Invariants:
1. Ctrl-C while an answer is written stops that answer, keeps what came of it, and returns to the prompt.
2. An answer that cannot be given leaves the conversation as it was before the question.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import given_sampling, given_settings, sampling_options, settings_options, with_options
from octavo.cli.terminal import Interruption, piped_lines, working
from octavo.config import EngineConfig
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from octavo import LLM, SamplingParams

Message = dict[str, str]
LEAVE, START_OVER = "/exit", "/clear"


@with_options(*sampling_options(), *settings_options(EngineConfig))
@click.command("chat")
@click.option("--system", help="System prompt: how the model should behave.")
def command(system: str | None, **options: Any) -> None:
    """Talk with a model. Ctrl-C stops an answer; Ctrl-D or /exit leaves; /clear starts over.

    When standard input is not a terminal, each of its lines is one question. Sampling options that are not given come from the
    model's generation_config.json.
    """
    from octavo import LLM

    with working("loading the model"):
        llm = LLM(**given_settings(EngineConfig, options))
    params = replace(llm.engine.default_params, **{"max_tokens": None, **given_sampling(options)})
    conversation = Conversation(llm, params, system)
    for line in _questions():
        if line == START_OVER:
            conversation.clear()
        elif line:
            conversation.ask(line)


def _questions() -> Iterator[str]:
    """Yields what the user enters, until the end of input or `/exit`."""
    if not sys.stdin.isatty():
        yield from map(str.strip, piped_lines())
        return
    import readline  # noqa: F401  (gives input() line editing and a history)

    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo(f"\n({LEAVE} or Ctrl-D leaves)")
            continue
        if line == LEAVE:
            return
        yield line


class Conversation:
    """The messages so far, and how the next one is answered."""

    def __init__(self, llm: "LLM", params: "SamplingParams", system: str | None):
        self._llm = llm
        self._params = params
        self._opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages: list[Message] = list(self._opening)

    def clear(self) -> None:
        """Forgets everything but the system prompt."""
        self.messages = list(self._opening)

    def ask(self, question: str) -> None:
        """Writes the answer to ``question`` to standard output as it comes, and keeps both."""
        messages = [*self.messages, {"role": "user", "content": question}]
        try:
            answer = self._write_answer(messages)
        except OctavoError as error:
            if not sys.stdin.isatty():
                raise
            click.echo(f"error: {error}\n{START_OVER} starts over", err=True)
            return
        self.messages = [*messages, {"role": "assistant", "content": answer}]

    def _write_answer(self, messages: list[Message]) -> str:
        pieces: list[str] = []
        with Interruption() as interruption:
            for piece in self._llm.stream(messages, self._params):
                click.echo(piece, nl=False)
                pieces.append(piece)
                if interruption.requested:
                    break
        click.echo()
        return "".join(pieces)
