"""Bodies of ``/v1/messages``.

Owns: the fields, as Anthropic's clients know them, and the conversation in OpenAI's terms that they mean. Must not know: how it is
answered.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat

from octavo.server.errors import invalid
from octavo.server.protocol.base import Name, RequestBody, ResponseBody, RetainFields, StopString
from octavo.server.protocol.chat import MAX_MESSAGES, ChatMessage, ChatRequest
from octavo.server.protocol.structured import JsonSchema, JsonSchemaFormat, NamedSchema
from octavo.server.protocol.tools import (
    MAX_TOOLS,
    FunctionChoice,
    FunctionDefinition,
    FunctionName,
    NamedToolChoice,
    PastFunctionCall,
    PastToolCall,
    Tool,
)


class CacheControl(RequestBody):
    """Asks for the prompt's prefix to be cached, which every prompt's is."""

    type: Literal["ephemeral"]


class TextBlock(RequestBody):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: None = None


class ToolUseBlock(RequestBody):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: Name
    name: FunctionName
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolResultBlock(RequestBody):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: str | list[TextBlock] | None = None
    is_error: Literal[False] | None = None
    cache_control: CacheControl | None = None


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class Message(RequestBody):
    """One message; results of calls come from the user, calls from the assistant."""

    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], Field(min_length=1)]

    def as_chat(self, path: str) -> list[ChatMessage]:
        """Returns the same in OpenAI's terms: the results of calls are messages of their own."""
        if isinstance(self.content, str):
            return [ChatMessage(role=self.role, content=self.content)]
        self._check(path)
        results = [
            ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=_join(block.content))
            for block in self.content
            if isinstance(block, ToolResultBlock)
        ]
        texts = [block for block in self.content if isinstance(block, TextBlock)]
        calls = [_past_call(block) for block in self.content if isinstance(block, ToolUseBlock)]
        if not (texts or calls):
            return results
        return [*results, ChatMessage(role=self.role, content=_join(texts), tool_calls=calls or None)]

    def _check(self, path: str) -> None:
        wrong = ToolResultBlock if self.role == "assistant" else ToolUseBlock
        for index, block in enumerate(self.content):
            if isinstance(block, wrong):
                raise invalid(f"{path}.content[{index}]", f"a block of the type {block.type!r} is not the {self.role}'s")


def _join(content: str | list[TextBlock] | None) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content or [])


def _past_call(block: ToolUseBlock) -> PastToolCall:
    return PastToolCall(id=block.id, function=PastFunctionCall(name=block.name, arguments=json.dumps(block.input)))


class MessagesTool(RequestBody):
    """A tool that the model may call."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    cache_control: CacheControl | None = None

    def as_chat(self) -> Tool:
        """Returns the same in OpenAI's terms."""
        function = FunctionDefinition(name=self.name, description=self.description, parameters=self.input_schema)
        return Tool(type="function", function=function)


class MessagesToolChoice(RequestBody):
    """Whether tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None

    def as_chat(self) -> Literal["none", "auto", "required"] | NamedToolChoice:
        """Returns the same in OpenAI's terms."""
        if (self.type == "tool") != (self.name is not None):
            raise invalid("tool_choice.name", "tool_choice.name belongs to the type 'tool', and to no other")
        if self.name is not None:
            return NamedToolChoice(type="function", function=FunctionChoice(name=self.name))
        return "required" if self.type == "any" else "none" if self.type == "none" else "auto"


class Thinking(RequestBody):
    """Models do not think apart from their answers."""

    type: Literal["disabled"]


class MessagesMetadata(RequestBody):
    """Who asks."""

    user_id: Name | None = Field(None, description="Written to the access log.")


class OutputFormat(RequestBody):
    """The answer is a JSON document that fits a schema."""

    type: Literal["json_schema"]
    schema_: JsonSchema = Field(alias="schema")


class OutputConfig(RequestBody):
    """What form the answer must have."""

    effort: None = None
    format: OutputFormat | None = None

    def as_chat(self) -> JsonSchemaFormat | None:
        """Returns the same in OpenAI's terms."""
        if self.format is None:
            return None
        return JsonSchemaFormat(type="json_schema", json_schema=NamedSchema(name="answer", schema=self.format.schema_))


# What a chat's fields are called in this interface.
FIELD_NAMES = {"prompt": "messages", "stop": "stop_sequences", "response_format": "output_config.format"}


class CountTokensRequest(RequestBody):
    """A conversation."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl | None = None
    output_config: OutputConfig | None = None
    speed: Literal["standard"] | None = None
    user_profile_id: None = None
    workspace_id: None = None

    def as_chat(self) -> ChatRequest:
        """Returns the same in OpenAI's terms."""
        messages = [] if self.system is None else [ChatMessage(role="system", content=_join(self.system))]
        for index, message in enumerate(self.messages):
            messages += message.as_chat(f"messages[{index}]")
        if len(messages) > MAX_MESSAGES:
            raise invalid("messages", f"messages has {len(messages)} texts and results of calls; {MAX_MESSAGES} are allowed")
        is_single = self.tool_choice is not None and self.tool_choice.disable_parallel_tool_use
        return ChatRequest(
            model=self.model,
            messages=messages,
            tools=None if self.tools is None else [tool.as_chat() for tool in self.tools],
            tool_choice=None if self.tool_choice is None else self.tool_choice.as_chat(),
            parallel_tool_calls=False if is_single else None,
            response_format=None if self.output_config is None else self.output_config.as_chat(),
            continue_final_message=True if self.messages[-1].role == "assistant" else None,
        )


class MessagesRequest(CountTokensRequest, RetainFields):
    """A conversation to continue; one that ends with the assistant's text is continued inside it."""

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: list[StopString] | None = None
    temperature: FiniteFloat | None = None
    top_k: int | None = None
    top_p: FiniteFloat | None = None
    metadata: MessagesMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: None = None
    diagnostics: None = None
    inference_geo: None = None

    def as_chat(self) -> ChatRequest:
        sampling = {
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences or None,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "retain": self.retain,
            "user": self.metadata.user_id if self.metadata is not None else None,
        }
        return super().as_chat().model_copy(update=sampling)


class MessagesUsage(ResponseBody):
    """Tokens of a request; those of the prompt that were cached count apart."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class AnswerTextBlock(ResponseBody):
    """Text."""

    type: Literal["text"] = "text"
    text: str


class AnswerToolUseBlock(ResponseBody):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class MessagesResponse(ResponseBody):
    """The answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerTextBlock | AnswerToolUseBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessagesUsage


class CountTokensResponse(ResponseBody):
    """The prompt's length."""

    input_tokens: int
