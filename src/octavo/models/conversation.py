"""A conversation to the text that stands for it, in which control tokens are the template's alone.

Owns: the order hide → render. Must not know: the engine, HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import RequestError
from octavo.models.chat_template import ChatTemplate, Message
from octavo.models.control_text import ControlText


def render_conversation(
    template: ChatTemplate,
    control_text: ControlText,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """Returns what `ChatTemplate.render` makes of a conversation, for `Tokenizer.encode_chat`; `ControlText.shown` unhides it.

    Whatever spells a control token in messages, tools or arguments is hidden and remains ordinary text.

    Raises:
        RequestError, CheckpointError: as `ChatTemplate.render`.
    """
    try:
        return template.render(
            control_text.hide(messages),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=control_text.hide(tools),
            arguments=control_text.hide(arguments),
        )
    except RequestError as error:  # a template's own complaint may quote what was hidden
        raise RequestError(control_text.shown(error.message), field=error.field, hint=error.hint) from error
