"""Tools in requests and answers.

Owns: the fields, as OpenAI's clients know them. Must not know: how models spell calls.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.server.errors import invalid
from octavo.server.protocol.base import Name, RequestBody, ResponseBody

MAX_TOOLS = 128
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(RequestBody):
    """A function that the model may call. Forced calls always fit the schema, with `strict` or without."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestBody):
    """One tool."""

    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        """Returns the tool as chat templates read it."""
        function = self.function
        parameters = function.parameters or {"type": "object", "properties": {}}
        described = {"name": function.name, "description": function.description or "", "parameters": parameters}
        return {"type": "function", "function": described}


class FunctionChoice(RequestBody):
    """The name of a function."""

    name: FunctionName


class NamedToolChoice(RequestBody):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionChoice


class ToolFields(RequestBody):
    """The fields that say what the model may call."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: of several calls, only the first is returned.")


class PastFunctionCall(RequestBody):
    """A call in the conversation; no arguments can be written as null, as an empty text or as "{}"."""

    name: FunctionName
    arguments: str | None = None


class PastToolCall(RequestBody):
    """A call in the conversation."""

    id: Name
    type: Literal["function"] | None = None
    function: PastFunctionCall

    def for_template(self, path: str) -> dict[str, Any]:
        """Returns the call as chat templates read it: with its arguments as an object."""
        arguments = _read_arguments(self.function.arguments, f"{path}.function.arguments")
        return {"id": self.id, "type": "function", "function": {"name": self.function.name, "arguments": arguments}}


def _read_arguments(text: str | None, path: str) -> dict[str, Any]:
    if text is None or text.strip() in ("", "null"):
        return {}
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(path, f"{path} is no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise invalid(path, f"{path} must be the text of a JSON object")
    return arguments


class FunctionCall(ResponseBody):
    """A call; its arguments are the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(ResponseBody):
    """A call in an answer."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class FunctionCallDelta(ResponseBody):
    """What a chunk adds to a call."""

    name: str | None = None
    arguments: str


class ToolCallDelta(ResponseBody):
    """What a chunk adds to a call in an answer; the first one has its id and its name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta
