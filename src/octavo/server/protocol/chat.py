"""Bodies of ``/v1/chat/completions``.

Owns: the fields, as OpenAI's and vLLM's clients know them. Must not know: how they are honoured.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.server.errors import invalid
from octavo.server.protocol.base import Name, RequestBody, ResponseBody, Usage
from octavo.server.protocol.completions import PromptLogprobs
from octavo.server.protocol.structured import StructuredFields

MAX_MESSAGES = 10_000


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation and how it becomes a prompt; the fields are those of `ChatTemplate.render`."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    continue_final_message: bool
    arguments: dict[str, Any]


class TextPart(RequestBody):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(RequestBody):
    """One message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: Name | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None

    def for_template(self) -> dict[str, str]:
        """Returns the message as chat templates read it."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        message = {"role": "system" if self.role == "developer" else self.role, "content": content}
        return message if self.name is None else {**message, "name": self.name}


class ConversationFields(RequestBody):
    """The fields that say how messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables for the chat template.")

    def prompt_of(self, messages: list[ChatMessage]) -> ChatPrompt:
        """Returns what the model is to be shown of the messages."""
        continues = bool(self.continue_final_message)
        adds_prompt = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        rendered = [message.for_template() for message in messages]
        return ChatPrompt(rendered, adds_prompt, continues, self.chat_template_kwargs or {})


class ChatRequest(StructuredFields, ConversationFields):
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
    parallel_tool_calls: bool | None = Field(None, description="Means nothing as long as there are no tools.")
    prediction: None = None
    prompt_cache_key: None = None
    prompt_cache_retention: Literal["in_memory", "in-memory"] | None = None
    reasoning_effort: Literal["none"] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: None = None

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
    content: str
    refusal: None = None


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
