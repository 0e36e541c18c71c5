"""What a request's tools mean for its prompt, its grammar and its answer.

Owns: the choice among tools, and calls in the form that clients read. Must not know: how calls are found in a text.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.server.errors import invalid
from octavo.server.protocol.tools import FunctionCall, NamedToolChoice, ToolCall, ToolFields
from octavo.server.tool_parser import Piece, ToolCallParser
from octavo.server.tool_syntax import ToolSyntax, find_syntax, forced_calls

if TYPE_CHECKING:
    from octavo.engine.grammar import Grammar
    from octavo.models.chat_template import ChatTemplate

ID_CHARS = 9  # what the templates of Mistral's models insist on


@dataclass(frozen=True)
class Tools:
    """The tools that one request's answers may call.

    Attributes:
        descriptions: of all tools, as chat templates read them.
        forced: names of the tools one of which must be called; empty: the model decides.
        is_single: no more than one call is wanted.
    """

    syntax: ToolSyntax
    descriptions: list[dict[str, Any]]
    forced: frozenset[str]
    is_single: bool

    def parser(self) -> ToolCallParser:
        """Returns what reads one answer."""
        names = frozenset(tool["function"]["name"] for tool in self.descriptions)
        return ToolCallParser(self.syntax, names, begins_inside=bool(self.forced), max_calls=1 if self.is_single else None)

    def forced_grammar(self) -> "Grammar | None":
        """Returns the grammar of answers that call the forced tools; None where the model decides."""
        if not self.forced:
            return None
        functions = [tool["function"] for tool in self.descriptions if tool["function"]["name"] in self.forced]
        schemas = {function["name"]: function["parameters"] for function in functions}
        return forced_calls(self.syntax, schemas, "tools", is_single=self.is_single)


def read_tools(body: ToolFields, template: "ChatTemplate | None") -> Tools | None:
    """Returns the tools of a request; None when the model is not to call any.

    Raises:
        ApiError: the model's chat template knows no tools, or the choice names none of them.
    """
    tools, choice = body.tools or [], body.tool_choice
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise invalid("tools", "two tools have the same name")
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        raise invalid("tool_choice", f"tool_choice names {choice.function.name!r}, which is not in tools")
    if choice == "required" and not tools:
        raise invalid("tool_choice", "tool_choice='required' needs tools")
    if not tools or choice == "none":
        return None
    syntax = find_syntax(template.source(with_tools=True)) if template is not None else None
    if syntax is None:
        raise invalid("tools", "the model's chat template knows no tools; Hermes', Llama 3's and Mistral's calls are supported")
    is_named = isinstance(choice, NamedToolChoice)
    forced = {choice.function.name} if isinstance(choice, NamedToolChoice) else set(names) if choice == "required" else set()
    is_single = is_named or body.parallel_tool_calls is False
    return Tools(syntax, [tool.for_template() for tool in tools], frozenset(forced), is_single)


def call_id(answer: str, index: int) -> str:
    """Returns the id of a call, the same in a stream and in a whole answer."""
    return hashlib.sha256(f"{answer}/{index}".encode()).hexdigest()[:ID_CHARS]


def join_calls(pieces: Sequence[Piece], answer: str) -> list[ToolCall]:
    """Returns the calls that an answer's pieces make up.

    Args:
        answer: the answer's name, unlike that of any other.
    """
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.name is not None:
            calls.append(ToolCall(id=call_id(answer, len(calls)), function=FunctionCall(name=piece.name, arguments="")))
        elif piece.call_index is not None:
            calls[piece.call_index].function.arguments += piece.arguments
    return calls


def call_deltas(pieces: Sequence[Piece], answer: str) -> list[dict[str, Any]]:
    """Returns what pieces add to an answer's calls, in the form of `ToolCallDelta`."""
    deltas: list[dict[str, Any]] = []
    for piece in pieces:
        if piece.call_index is None:
            continue
        function = {"arguments": piece.arguments}
        delta: dict[str, Any] = {"index": piece.call_index, "function": function}
        if piece.name is not None:
            delta |= {"id": call_id(answer, piece.call_index), "type": "function"}
            function["name"] = piece.name
        deltas.append(delta)
    return deltas
