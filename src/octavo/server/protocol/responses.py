"""Bodies of ``/v1/responses``.

Owns: the fields, as OpenAI's clients know them, and the conversation that they mean. Must not know: how it is answered.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat

from octavo.server.errors import invalid
from octavo.server.protocol.base import Name, RequestBody, ResponseBody, RetainFields
from octavo.server.protocol.chat import MAX_MESSAGES, ChatMessage, ChatRequest
from octavo.server.protocol.structured import (
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    NamedSchema,
    ResponseFormat,
    TextFormat,
)
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


class ContentPart(RequestBody):
    """A part of a message."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: Annotated[list[Any], Field(max_length=0)] | None = None


class MessageItem(RequestBody):
    """A message."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart]
    id: Name | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    def as_chat(self) -> ChatMessage:
        """Returns the same as a message of a chat."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return ChatMessage(role=self.role, content=text)


class FunctionCallItem(RequestBody):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: Name
    name: FunctionName
    arguments: str
    id: Name | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    def as_chat(self) -> ChatMessage:
        """Returns the same as a message of a chat."""
        call = PastToolCall(id=self.call_id, function=PastFunctionCall(name=self.name, arguments=self.arguments))
        return ChatMessage(role="assistant", tool_calls=[call])


class FunctionOutputItem(RequestBody):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: Name
    output: str
    id: Name | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    def as_chat(self) -> ChatMessage:
        """Returns the same as a message of a chat."""
        return ChatMessage(role="tool", tool_call_id=self.call_id, content=self.output)


InputItem = FunctionCallItem | FunctionOutputItem | MessageItem


class ResponsesTool(RequestBody):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_chat(self) -> Tool:
        """Returns the same as a tool of a chat."""
        function = FunctionDefinition(name=self.name, description=self.description, parameters=self.parameters)
        return Tool(type="function", function=function)


class ResponsesToolChoice(RequestBody):
    """The function that must be called."""

    type: Literal["function"]
    name: FunctionName


class FlatSchemaFormat(RequestBody):
    """The answer is a JSON document that fits a schema."""

    type: Literal["json_schema"]
    name: Name
    schema_: JsonSchema = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(RequestBody):
    """What form the text must have."""

    format: TextFormat | JsonObjectFormat | FlatSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None

    def as_chat(self) -> ResponseFormat | None:
        """Returns the format as a chat names it."""
        if isinstance(self.format, FlatSchemaFormat):
            return JsonSchemaFormat(type="json_schema", json_schema=NamedSchema(name=self.format.name, schema=self.format.schema_))
        return self.format


class ResponsesStreamOptions(RequestBody):
    """How a stream is sent."""

    include_obfuscation: Literal[False] | None = None


# What a chat's fields are called in this interface; the input's items are no longer told apart when a chat is made of them.
FIELD_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}


class ResponsesRequest(RetainFields):
    """An input to answer, alone or after an earlier response."""

    model: str | None = None
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: Name | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: FiniteFloat | None = None
    top_p: FiniteFloat | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    store: bool | None = Field(None, description="false: the response cannot be retrieved or continued later.")
    background: bool | None = Field(None, description="Answer at once; the response is made meanwhile and can be cancelled.")
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    user: Name | None = Field(None, description="Written to the access log.")
    safety_identifier: Name | None = Field(None, description="Written to the access log.")

    access_programs: None = None
    background_options: None = None
    context_management: None = None
    conversation: None = None
    image: None = None
    include: Annotated[list[str], Field(max_length=0)] | None = None
    max_tool_calls: None = None
    moderation: None = None
    prompt: None = None
    prompt_cache_key: None = None
    prompt_cache_options: None = None
    prompt_cache_retention: Literal["in_memory"] | None = None
    reasoning: None = None
    service_tier: Literal["auto", "default"] | None = None
    top_logprobs: Literal[0] | None = None
    truncation: Literal["disabled"] | None = None

    def check(self) -> None:
        """Refuses combinations that cannot be honoured."""
        if self.background and (self.stream or self.store is False):
            raise invalid("background", "background is allowed only with stream=false and store=true")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "stream_options is allowed only with stream=true")

    def messages(self) -> list[ChatMessage]:
        """Returns the input as messages of a chat."""
        if isinstance(self.input, str):
            return [ChatMessage(role="user", content=self.input)]
        return [item.as_chat() for item in self.input]

    def as_chat(self, earlier: list[ChatMessage]) -> ChatRequest:
        """Returns the request as a chat.

        Args:
            earlier: the conversation up to the previous response.
        """
        system = [] if self.instructions is None else [ChatMessage(role="system", content=self.instructions)]
        messages = [*system, *earlier, *self.messages()]
        if len(messages) > MAX_MESSAGES:
            raise invalid("input", f"the conversation has {len(messages)} messages; {MAX_MESSAGES} are allowed")
        choice = self.tool_choice
        if isinstance(choice, ResponsesToolChoice):
            choice = NamedToolChoice(type="function", function=FunctionChoice(name=choice.name))
        return ChatRequest(
            model=self.model,
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=None if self.tools is None else [tool.as_chat() for tool in self.tools],
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=None if self.text is None else self.text.as_chat(),
            user=self.user,
            retain=self.retain,
            safety_identifier=self.safety_identifier,
        )


class OutputText(ResponseBody):
    """Text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[Any] = Field(default_factory=list)


class OutputMessage(ResponseBody):
    """A message of the model."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"
    content: list[OutputText] = Field(default_factory=list)


class OutputCall(ResponseBody):
    """A call of the model."""

    id: str
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str = ""
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"


class InputTokensDetails(ResponseBody):
    """Where the prompt's KV came from."""

    cached_tokens: int


class OutputTokensDetails(ResponseBody):
    """What the answer's tokens were for."""

    reasoning_tokens: int = 0


class ResponsesUsage(ResponseBody):
    """Tokens of a request."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class IncompleteDetails(ResponseBody):
    """Why an answer is not complete."""

    reason: str


class ResponseFailure(ResponseBody):
    """Why there is no answer."""

    code: str
    message: str


class ResponseObject(ResponseBody):
    """A response, finished or not."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "cancelled", "failed"] = "in_progress"
    model: str
    output: list[OutputMessage | OutputCall] = Field(default_factory=list)
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float
    top_p: float
    parallel_tool_calls: bool
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    text: dict[str, Any] = Field(default_factory=lambda: {"format": {"type": "text"}})
    truncation: Literal["disabled"] = "disabled"
    background: bool = False
    store: bool = True
    metadata: dict[str, str] = Field(default_factory=dict)
    usage: ResponsesUsage | None = None


class InputItemList(ResponseBody):
    """The input of a response."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False


class DeletedResponse(ResponseBody):
    """A response is forgotten."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
