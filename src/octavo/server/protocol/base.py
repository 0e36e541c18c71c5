"""What all request and response bodies have in common.

Owns: strictness of requests, sampling fields, usage. Must not know: how anything is computed.

Invariants:
1. A field that is not declared is refused, and so is a value of another JSON type: nothing is converted, nothing ignored.
2. ``null`` means the default.
3. Fields of OpenAI's or vLLM's interfaces that are not supported are declared with the values that ask for nothing.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from octavo.server.errors import invalid

MAX_STOP_CHARS = 1024  # a stop string's length bounds the text that is searched again with every token
MAX_BIASED_TOKENS = 1024  # each costs time at every token of the answer
MAX_NAME_CHARS = 256  # of ids, salts and the like

TokenIdKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[^\x00]*$")]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class RequestBody(BaseModel):
    """A JSON body that a client sends, or a part of one."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ResponseBody(BaseModel):
    """A JSON body that a client gets, or a part of one."""


class StreamOptions(RequestBody):
    """How a stream is sent.

    Attributes:
        include_usage: end the stream with a chunk that holds the usage.
        include_obfuscation: not supported.
    """

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class IdentityFields(RequestBody):
    """Who asks which model, and where the request stands among others."""

    model: str | None = None
    user: Name | None = Field(None, description="Written to the access log.")
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = Field(None, description="Lower runs earlier.")
    cache_salt: Name | None = Field(None, description="KV is shared only among requests of equal salt.")
    request_id: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")] | None = None


class Retention(RequestBody):
    """How long the blocks of a range of a request's tokens are worth keeping in the cache.

    Attributes:
        priority: 0 to 100, 50 for a request that asks for nothing; blocks of lower priority are dropped first.
        ttl_s: seconds from the end of the request; no end if not given.
        start, end: the tokens, prompt and answer counted; from the first to the last if not given.
    """

    priority: Annotated[int, Field(ge=0, le=100)]
    ttl_s: Annotated[FiniteFloat, Field(gt=0)] | None = None
    start: Annotated[int, Field(ge=0)] | None = None
    end: Annotated[int, Field(ge=1)] | None = None


class RetainFields(RequestBody):
    """What a request asks for the blocks that it leaves in the cache."""

    retain: Retention | Annotated[list[Retention], Field(max_length=16)] | None = None

    def retentions(self) -> list[dict[str, Any]] | None:
        """Returns it as the engine reads it."""
        if self.retain is None:
            return None
        return [entry.model_dump() for entry in (self.retain if isinstance(self.retain, list) else [self.retain])]


class GenerationFields(IdentityFields, RetainFields):
    """The fields that completions and chat completions share; `SamplingParams` explains and checks those of the same name."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: FiniteFloat | None = None
    top_p: FiniteFloat | None = None
    presence_penalty: FiniteFloat | None = None
    frequency_penalty: FiniteFloat | None = None
    seed: int | None = None
    stop: StopString | list[StopString] | None = None
    logit_bias: Annotated[dict[TokenIdKey, FiniteFloat], Field(max_length=MAX_BIASED_TOKENS)] | None = None

    top_k: int | None = None
    min_p: FiniteFloat | None = None
    repetition_penalty: FiniteFloat | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[StopString] | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = Field(None, description="Also return the token ids of prompt and answer.")

    use_beam_search: bool | None = Field(None, description="Return the n most likely continuations that a beam search finds.")
    length_penalty: FiniteFloat | None = Field(None, description="Of a beam search: above 0 favours long answers.")
    early_stopping: bool | Literal["never"] | None = Field(None, description="Of a beam search: when to end.")
    spaces_between_special_tokens: Literal[False] | None = None
    truncate_prompt_tokens: None = None
    return_tokens_as_token_ids: Literal[False] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=0)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    @property
    def includes_usage(self) -> bool:
        """True when a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_stream(self) -> None:
        """Refuses stream options without a stream."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "stream_options is allowed only with stream=true")


class PromptTokensDetails(ResponseBody):
    """Where the prompt's KV came from."""

    cached_tokens: int


class Usage(ResponseBody):
    """Tokens of a request; a prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ErrorDetail(ResponseBody):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(ResponseBody):
    """Every answer that is no success; ``type`` is there where Anthropic's clients ask."""

    error: ErrorDetail
    type: Literal["error"] | None = None


# What a route that also streams says of success, beside its whole body.
STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        400: "A field is wrong, unknown or not supported; param names it.",
        401: "The API key is missing or wrong.",
        404: "There is no such model or path.",
        413: "The body is too large.",
        429: "The queue is full or the key's quota is used up.",
        500: "The server failed.",
        503: "The server is draining, or the engine has stopped.",
    }.items()
}
