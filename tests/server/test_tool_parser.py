"""`octavo.server.tool_parser`: the same calls and the same content however the text is cut."""

import json

import pytest

from octavo.server.tool_parser import ToolCallParser
from octavo.server.tool_syntax import HERMES, LLAMA3, MISTRAL, find_syntax
from octavo.server.tools import join_calls

NAMES = frozenset({"look", "wait"})
TAG, END = "<tool_call>", "</tool_call>"

# syntax, text, content, calls
CASES = [
    (HERMES, "just text with <tool and { braces }", "just text with <tool and { braces }", []),
    (HERMES, f'{TAG}\n{{"name": "look", "arguments": {{"at": "sky"}}}}\n{END}', "", [("look", {"at": "sky"})]),
    (HERMES, f'Well.\n{TAG}{{"arguments": {{"n": [1, {{}}]}}, "name": "look"}}{END}', "Well.", [("look", {"n": [1, {}]})]),
    (
        HERMES,
        f'{TAG}{{"name": "wait"}}{END}\n{TAG}{{"name": "look", "arguments": {{"a": 1}}}}{END}',
        "",
        [("wait", {}), ("look", {"a": 1})],
    ),
    (
        HERMES,
        f'{TAG}{{"name": "wait", "arguments": null}}{END}{TAG}{{"name": "wait", "arguments": {{}}}}{END}',
        "",
        [("wait", {})] * 2,
    ),
    (
        HERMES,
        f'{TAG}{{"name": "look", "arguments": {{"at": "a {END} \\" }} b"}}}}{END} done',
        " done",
        [("look", {"at": f'a {END} " }} b'})],
    ),
    (
        HERMES,
        f'{TAG}{{"name": "look", "arguments": {{"a": 1}}}}\n{TAG}{{"name": "wait"}}{END}',
        "",
        [("look", {"a": 1}), ("wait", {})],
    ),
    (HERMES, f'{TAG}{{"name": "nobody", "arguments": {{}}}}{END}', f'{TAG}{{"name": "nobody", "arguments": {{}}}}{END}', []),
    (HERMES, f"{TAG} no object {END}", f"{TAG} no object {END}", []),
    (HERMES, f'a {TAG}{{"name": "lo', f'a {TAG}{{"name": "lo', []),
    (LLAMA3, '{"name": "look", "parameters": {"at": "x"}}', "", [("look", {"at": "x"})]),
    (LLAMA3, ' {"name": "look", "parameters": {}}; {"name": "wait", "parameters": {}}', "", [("look", {}), ("wait", {})]),
    (LLAMA3, '<|python_tag|>{"name": "look", "arguments": {"at": 2}}', "", [("look", {"at": 2})]),
    (LLAMA3, 'Say {"name": "look", "parameters": {}}', 'Say {"name": "look", "parameters": {}}', []),
    (LLAMA3, '{"answer": 42}', '{"answer": 42}', []),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "look", "arguments": {"at": "]"}}, {"name": "wait", "arguments": {}}]',
        "",
        [("look", {"at": "]"}), ("wait", {})],
    ),
    (MISTRAL, "a [TOOL and [1]", "a [TOOL and [1]", []),
]


def read(parser: ToolCallParser, parts: list[str]) -> tuple[str, list[tuple[str, dict]]]:
    pieces = [piece for part in parts for piece in parser.feed(part)] + parser.finish()
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in join_calls(pieces, "a")]
    assert len(calls) == parser.num_calls
    return "".join(piece.content for piece in pieces), calls


@pytest.mark.parametrize(("syntax", "text", "content", "calls"), CASES, ids=lambda value: str(value)[:30])
def test_calls_however_the_text_is_cut(syntax, text, content, calls) -> None:
    assert read(ToolCallParser(syntax, NAMES), [text]) == (content, calls)
    assert read(ToolCallParser(syntax, NAMES), list(text)) == (content, calls)
    for cut in range(len(text)):
        assert read(ToolCallParser(syntax, NAMES), [text[:cut], text[cut:]]) == (content, calls), cut


def test_arguments_come_while_they_are_made() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    parser.feed(f'{TAG}{{"name": "look", ')
    parser.feed('"arguments": {"text": "ab')
    assert [piece.arguments for piece in parser.feed("cd")] == ["cd"]


def test_only_the_wanted_calls() -> None:
    text = f'{TAG}{{"name": "wait"}}{END}' * 3
    assert read(ToolCallParser(HERMES, NAMES, max_calls=1), [text]) == ("", [("wait", {})])


def test_syntax_is_found_in_the_template() -> None:
    assert find_syntax("{{ messages }}") is None
    assert find_syntax("{{ tools }} <tool_call>") is HERMES
    assert find_syntax("{{ tools }} [TOOL_CALLS]") is MISTRAL
    assert find_syntax('{{ tools }} {"name": function name, "parameters": dictionary}') is LLAMA3
    assert find_syntax("{{ tools }}") is None
