"""How models spell calls of tools in their text.

Owns: the spellings that are known, and the grammar that makes an answer consist of calls. Must not know: requests, streams.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.engine.grammar import JSON_OPTIONS, Grammar


@dataclass(frozen=True)
class ToolSyntax:
    """One spelling. Every call is a JSON object with a name and arguments.

    Attributes:
        opening: text before calls.
        closing: text after each call; empty where there is none.
        arguments_key: the arguments' name in the object.
        separator: text between two forced calls; None where a forced answer has one call only.
        brackets: what encloses a forced answer's calls.
        is_bare: an answer that begins with an object is a call without the opening.
    """

    name: str
    opening: str
    closing: str
    arguments_key: str
    separator: str | None
    brackets: tuple[str, str]
    is_bare: bool = False


HERMES = ToolSyntax("hermes", "<tool_call>", "</tool_call>", "arguments", "\n", ("", ""))
MISTRAL = ToolSyntax("mistral", "[TOOL_CALLS]", "", "arguments", ", ", ("[", "]"))
LLAMA3 = ToolSyntax("llama3", "<|python_tag|>", "", "parameters", None, ("", ""), is_bare=True)
SYNTAXES = {syntax.name: syntax for syntax in (HERMES, MISTRAL, LLAMA3)}


def find_syntax(template: str) -> ToolSyntax | None:
    """Returns the spelling that a chat template teaches; None where it knows no tools."""
    if "tools" not in template:
        return None
    for syntax in (HERMES, MISTRAL):
        if syntax.opening in template:
            return syntax
    return LLAMA3 if '"parameters"' in template or "python_tag" in template else None


def forced_calls(syntax: ToolSyntax, tools: Mapping[str, dict[str, Any]], field: str, *, is_single: bool) -> Grammar:
    """Returns the grammar of answers that consist of calls.

    Args:
        tools: the schema of each tool's arguments, by the tool's name.
        is_single: exactly one call.
    """
    rules = [f"start: {_quoted(syntax.brackets[0])} call {_repeat(syntax, is_single=is_single)} {_quoted(syntax.brackets[1])}"]
    before, after = (f"{syntax.opening}\n", f"\n{syntax.closing}") if syntax.closing else ("", "")
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    for index, (name, schema) in enumerate(tools.items()):
        head = f'{before}{{"name": {json.dumps(name)}, "{syntax.arguments_key}": '
        rules.append(f"call_{index}: {_quoted(head)} arguments_{index} {_quoted('}' + after)}")
        bounded = {**schema, "x-guidance": JSON_OPTIONS}
        rules.append(f"arguments_{index}: %json {json.dumps(bounded)}")
    return Grammar("lark", "\n".join(rules), field)


def _repeat(syntax: ToolSyntax, *, is_single: bool) -> str:
    return "" if is_single or syntax.separator is None else f"({_quoted(syntax.separator)} call)*"


def _quoted(text: str) -> str:
    return json.dumps(text)
