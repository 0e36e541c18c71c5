"""A conversation to the text that the model was trained to continue.

Owns: the Jinja sandbox and what templates find in it. Must not know: token ids.

Invariants:
1. A template can read its arguments and nothing else: no attribute of a Python object, no file, no assignment to an argument.
2. Rendering stops at `MAX_RENDERED_CHARS`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RENDERED_CHARS = 16 * 2**20  # more than any context length needs; a template in an endless loop stops here
DEFAULT_NAME, TOOLS_NAME = "default", "tool_use"

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's chat template, or several of them by name; compiled when first used.

    Args:
        sources: Jinja text by name. With tools, the one named ``tool_use`` is taken where there is one; otherwise ``default``.
        bos_token: text of the beginning-of-sequence token, which templates write themselves; empty when there is none.
        eos_token: text of the end-of-sequence token.
    """

    def __init__(self, sources: Mapping[str, str], *, bos_token: str = "", eos_token: str = ""):
        self.sources = dict(sources)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._compiled: dict[str, Template] = {}

    def source(self, *, with_tools: bool) -> str:
        """Returns the Jinja text that renders conversations, with tools or without."""
        return self.sources.get(TOOLS_NAME if with_tools and TOOLS_NAME in self.sources else DEFAULT_NAME, "")

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns the prompt of a conversation.

        Args:
            messages: what was said, oldest first.
            add_generation_prompt: end with the beginning of the assistant's next message.
            continue_final_message: end inside the last message, so that the model goes on with it; excludes the former.
            tools: descriptions of the functions that the model may call.
            arguments: further variables for the template.

        Raises:
            RequestError: the template refuses the messages or fails on them, or its text is too long.
            CheckpointError: the template itself is no valid Jinja.
        """
        if continue_final_message and (add_generation_prompt or not messages):
            raise RequestError(
                "continue_final_message needs a last message and excludes add_generation_prompt", field="continue_final_message"
            )
        name = TOOLS_NAME if tools and TOOLS_NAME in self.sources else DEFAULT_NAME
        variables = {
            **self._tokens,
            **(arguments or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        text = _run(self._template(name), variables)
        return _cut_after_message(text, messages[-1]) if continue_final_message else text

    def _template(self, name: str) -> "Template":
        import jinja2

        if name not in self.sources:
            raise CheckpointError(f"the model has no chat template named {name!r}, only {', '.join(self.sources)}")
        if name not in self._compiled:
            try:
                self._compiled[name] = _environment().from_string(self.sources[name])
            except (jinja2.TemplateSyntaxError, RecursionError) as cause:
                raise CheckpointError(f"the chat template {name!r} is no valid Jinja: {cause}") from cause
        return self._compiled[name]


def _run(template: "Template", variables: Mapping[str, Any]) -> str:
    import jinja2

    pieces, num_chars = [], 0
    try:
        for piece in template.generate(variables):
            pieces.append(piece)
            num_chars += len(piece)
            if num_chars > MAX_RENDERED_CHARS:
                raise RequestError(f"the rendered conversation has more than {MAX_RENDERED_CHARS} characters", field="messages")
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as cause:
        # Template code runs on what the client sent, and fails on it in any of Python's ways.
        raise RequestError(f"the chat template cannot render these messages: {cause}", field="messages") from cause
    return "".join(pieces)


def _cut_after_message(text: str, message: Message) -> str:
    """Returns the rendered text up to the end of the last message's content."""
    content = message.get("content")
    if not isinstance(content, str) or content.strip() not in text:
        raise RequestError("the chat template changes the last message, so it cannot be continued", field="continue_final_message")
    start = text.rindex(content.strip())
    kept = content.lstrip() if text[start:].startswith(content.lstrip()) else content.strip()  # some templates trim messages
    return text[:start] + kept


def _environment() -> "ImmutableSandboxedEnvironment":
    """Returns the sandbox with the functions that chat templates on the model hub call."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation_extension()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _format_now
    return environment


def _generation_extension() -> type:
    """Returns the Jinja extension for ``{% generation %}``, which marks text for training and changes nothing here."""
    from jinja2 import nodes, parser
    from jinja2.ext import Extension

    class GenerationBlock(Extension):
        tags = {"generation"}  # noqa: RUF012 - the attribute is Jinja's

        def parse(self, parser: parser.Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    return GenerationBlock


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML characters, which models have not been trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _format_now(time_format: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(time_format)
