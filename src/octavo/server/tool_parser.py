"""Finds the calls of tools in an answer's text, while it is being made.

Owns: what of a text is content and what is a call. Must not know: requests, HTTP.

Invariants:
1. The pieces of a text do not depend on how it was cut: a stream's pieces joined are those of the whole.
2. What looks like a call but is none, because it names no known tool, is content, with all its characters.
3. The arguments of a call that is complete are the text of a JSON object.
"""

from dataclasses import dataclass, field

from octavo.server.tool_syntax import ToolSyntax

SEPARATORS = " \t\r\n,;[]"


@dataclass(frozen=True)
class Piece:
    """A part of an answer.

    Attributes:
        content: text for the user.
        call_index: the call that the rest belongs to; None: none.
        name: the tool's name, in the first piece of a call.
        arguments: what is added to the arguments' text.
    """

    content: str = ""
    call_index: int | None = None
    name: str | None = None
    arguments: str = ""


class CallReader:
    """Reads one JSON object, character by character."""

    def __init__(self, before: str, arguments_key: str):
        self.text = before  # everything since the opening, to be given back if this is no call
        self.fields: dict[str, str] = {}
        self.is_done = False
        self._arguments_keys = ("arguments", "parameters") if arguments_key == "parameters" else (arguments_key,)
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._string: list[str] = []
        self._key: str | None = None
        self._value: list[str] = []

    def feed(self, character: str) -> None:
        """Takes the next character."""
        self.text += character
        was_string = self._in_string
        if was_string:
            self._feed_string(character)
        elif character == '"':
            self._in_string, self._string = True, []
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        self._feed_value(character, is_structure=not was_string and character != '"')

    def _feed_string(self, character: str) -> None:
        if not self._is_escaped and character == '"':
            self._in_string = False
            return
        self._is_escaped = not self._is_escaped and character == "\\"
        self._string.append(character)

    def _feed_value(self, character: str, *, is_structure: bool) -> None:
        ends = is_structure and (self._depth == 0 or (self._depth == 1 and character == ","))
        if ends:
            self._store()
            self.is_done = self._depth == 0
        elif is_structure and self._depth == 1 and character == ":" and self._key is None:
            self._key, self._value = "".join(self._string), []
        elif self._key is not None:
            self._value.append(character)

    def _store(self) -> None:
        if self._key is not None:
            self.fields.setdefault(self._key, "".join(self._value).strip())
        self._key = None

    @property
    def name(self) -> str | None:
        """The tool's name, once it is known."""
        name = self.fields.get("name", "")
        return name[1:-1] if len(name) > 2 and name[0] == name[-1] == '"' else None

    def arguments(self) -> str:
        """Returns what is known of the arguments' text; an object, once the call is complete."""
        known = next((self.fields[key] for key in self._arguments_keys if key in self.fields), None)
        if known is None and self._key in self._arguments_keys:
            known = "".join(self._value).strip()  # blanks at the end belong to it only if more follows
        if self.is_done:
            return known if known and known[0] == "{" else "{}"
        return known if known and known[0] == "{" else ""


@dataclass
class ToolCallParser:
    """Reads one answer.

    Attributes:
        names: the tools that there are.
        begins_inside: the answer consists of calls from its first character.
        max_calls: calls beyond these are left out.
    """

    syntax: ToolSyntax
    names: frozenset[str]
    begins_inside: bool = False
    max_calls: int | None = None
    num_calls: int = 0
    _held: str = ""  # seen, but not yet known to be content or not
    _blanks: str = ""  # of content, not yet given out: between calls they are left out
    _has_content: bool = False
    _is_inside: bool = False
    _reader: CallReader | None = None
    _is_announced: bool = False  # the call being read was given out
    _num_sent: int = 0  # characters of the arguments of the call being read
    _pieces: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._is_inside = self.begins_inside

    def feed(self, text: str) -> list[Piece]:
        """Takes more text and returns what became certain."""
        for character in text:
            if self._reader is not None:
                self._read_call(character)
            elif self._is_inside:
                self._read_between(character)
            else:
                self._read_content(character)
        self._send_arguments()
        return self._take()

    def finish(self) -> list[Piece]:
        """Returns what was held back; the text has ended."""
        if self._reader is not None:
            self._send_arguments()
            if not self._is_announced:
                self._give_content(self._reader.text)
        else:
            self._give_content("" if self._is_inside and self.num_calls else self._held)
        if not self.num_calls and self._blanks:
            self._pieces.append(Piece(self._blanks))
        self._reader, self._held, self._blanks = None, "", ""
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    # ---- outside of calls

    def _read_content(self, character: str) -> None:
        self._held += character
        opening = self.syntax.opening
        if self._is_bare_object():
            self._is_inside, self._held = True, ""
            self._read_between(character)
        elif self._held.endswith(opening):
            self._give_content(self._held.removesuffix(opening))
            self._is_inside, self._held = True, opening
        else:
            kept = _overlap(self._held, opening)
            self._give_content(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]

    def _is_bare_object(self) -> bool:
        """True at the brace with which an answer begins that is nothing but calls."""
        return self.syntax.is_bare and not self._has_content and self._held.strip() == "{"

    def _give_content(self, text: str) -> None:
        visible = text.rstrip()
        if visible:
            self._pieces.append(Piece(self._blanks + visible))
            self._blanks, self._has_content = "", True
        self._blanks += text[len(visible) :]

    # ---- between and inside calls

    def _read_between(self, character: str) -> None:
        self._held += character
        if character == "{":
            self._reader = CallReader(self._held[:-1], self.syntax.arguments_key)
            self._num_sent, self._held = 0, ""
            self._is_announced = False
            self._reader.feed(character)
        elif self.syntax.closing and self._held.strip() == self.syntax.closing:
            self._is_inside, self._held = False, ""
        elif character not in SEPARATORS and not (self.syntax.closing and self.syntax.closing.startswith(self._held.strip())):
            self._leave_calls()

    def _leave_calls(self) -> None:
        """Takes what was held for content; another opening may be in it."""
        held, self._held, self._is_inside = self._held, "", False
        if held.startswith(self.syntax.opening):
            self._give_content(held)
        else:
            for character in held:
                self._read_content(character)

    def _read_call(self, character: str) -> None:
        assert self._reader is not None, "there is no call to read"
        self._reader.feed(character)
        if not self._reader.is_done:
            return
        self._send_arguments()
        if not self._is_announced:
            self._give_content(self._reader.text)
        self._is_inside = self._is_announced
        self._reader = None

    def _send_arguments(self) -> None:
        reader = self._reader
        if reader is None or reader.name not in self.names:
            return
        is_wanted = self.max_calls is None or self.num_calls < self.max_calls + self._is_announced
        if not self._is_announced:
            self._is_announced = True
            self.num_calls += is_wanted
            if is_wanted:
                self._pieces.append(Piece(call_index=self.num_calls - 1, name=reader.name))
        arguments = reader.arguments()
        if is_wanted and len(arguments) > self._num_sent:
            self._pieces.append(Piece(call_index=self.num_calls - 1, arguments=arguments[self._num_sent :]))
        self._num_sent = len(arguments)


def _overlap(text: str, opening: str) -> int:
    """Returns how many of the last characters of a text may begin an opening."""
    return next((size for size in range(min(len(text), len(opening) - 1), 0, -1) if opening.startswith(text[-size:])), 0)
