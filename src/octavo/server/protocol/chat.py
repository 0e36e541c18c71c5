"""Bodies of ``/v1/chat/completions``.

Owns: the fields, as OpenAI's and vLLM's clients know them. Must not know: how they are honoured.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.server.errors import ApiError, invalid
from octavo.server.protocol.base import Name, RequestBody, ResponseBody, Usage
from octavo.server.protocol.completions import PromptLogprobs
from octavo.server.protocol.structured import StructuredFields
from octavo.server.protocol.tools import PastToolCall, ToolCall, ToolCallDelta, ToolFields

MAX_MESSAGES = 10_000
TEMPLATE_NAMES = ("messages", "tools", "add_generation_prompt")  # what a template gets from other fields


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation and how it becomes a prompt; the fields are those of `ChatTemplate.render`."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    continue_final_message: bool
    arguments: dict[str, Any]
    tools: list[dict[str, Any]] = field(default_factory=list)


class TextPart(RequestBody):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(RequestBody):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Name | None = None
    tool_calls: list[PastToolCall] | None = None
    tool_call_id: Name | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None

    def for_template(self, path: str) -> dict[str, Any]:
        """Returns the message as chat templates read it.

        Args:
            path: the message's place in the request, for errors.
        """
        self._check(path)
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            calls = enumerate(self.tool_calls)
            message["tool_calls"] = [call.for_template(f"{path}.tool_calls[{index}]") for index, call in calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def _check(self, path: str) -> None:
        if self.content is None and not self.tool_calls:
            raise ApiError(400, f"{path}.content is missing", param=f"{path}.content", code="missing_field")
        if self.tool_calls and self.role != "assistant":
            raise invalid(f"{path}.tool_calls", f"tool_calls are the assistant's; this message is the {self.role}'s")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise invalid(f"{path}.tool_call_id", "tool_call_id belongs to messages with the role tool, and to all of them")


class ConversationFields(RequestBody):
    """The fields that say how messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables for the chat template.")

    def check_source(self, prompt: object, messages: object) -> None:
        """Refuses a request with both a prompt and messages, with neither, or with a prompt and the fields of a conversation."""
        if (prompt is None) == (messages is None):
            raise invalid("prompt", "exactly one of prompt and messages must be given")
        for name in ConversationFields.model_fields:
            if prompt is not None and getattr(self, name) is not None:
                raise invalid(name, f"{name} is allowed only with messages")

    def prompt_of(self, messages: list[ChatMessage]) -> ChatPrompt:
        """Returns what the model is to be shown of the messages."""
        continues = bool(self.continue_final_message)
        adds_prompt = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        for name in TEMPLATE_NAMES:
            if name in (self.chat_template_kwargs or {}):
                raise invalid("chat_template_kwargs", f"chat_template_kwargs has {name}, which is a field of its own")
        rendered = [message.for_template(f"messages[{index}]") for index, message in enumerate(messages)]
        return ChatPrompt(rendered, adds_prompt, continues, self.chat_template_kwargs or {})


class ChatRequest(StructuredFields, ConversationFields, ToolFields):
    """A conversation to continue."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    echo: bool | None = Field(None, description="Begin the answer with the text of the last message.")
    safety_identifier: Name | None = Field(None, description="Written to the access log.")

    audio: None = None
    chat_template: None = None
    documents: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: Literal["none"] | None = None
    functions: Annotated[list[Any], Field(max_length=0)] | None = None
    modalities: list[Literal["text"]] | None = None
    moderation: None = None
    prediction: None = None
    prompt_cache_key: None = None
    prompt_cache_options: None = None
    prompt_cache_retention: Literal["in_memory", "in-memory"] | None = None
    reasoning_effort: Literal["none"] | None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: None = None

    def field_names(self) -> dict[str, str]:
        """Returns what the engine's fields are called in this request."""
        limit = "max_completion_tokens" if self.max_tokens is None else "max_tokens"
        return {"prompt": "messages", "max_tokens": limit}

    def answer_limit(self) -> int | None:
        """Returns the most tokens of the answer, which has two names."""
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise invalid("max_tokens", f"max_tokens={old} and max_completion_tokens={new} differ")
        return old if new is None else new

    def num_logprobs(self) -> int | None:
        """Returns how many alternatives per token are wanted; None when no log-probabilities are."""
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "top_logprobs is allowed only with logprobs=true")
        return (self.top_logprobs or 0) if self.logprobs else None


class ChatLogprob(ResponseBody):
    """A token, its log-probability and the bytes that it adds to the text."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(ChatLogprob):
    """A token of the answer and its most likely alternatives."""

    top_logprobs: list[ChatLogprob]


class ChatLogprobs(ResponseBody):
    """Log-probabilities, one entry per token of the answer, its end token included."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class AssistantMessage(ResponseBody):
    """The model's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(ResponseBody):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatResponse(ResponseBody):
    """The answers."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class ChatDelta(ResponseBody):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(ResponseBody):
    """What a chunk adds to one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatChunk(ResponseBody):
    """An event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
