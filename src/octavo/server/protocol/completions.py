"""Bodies of ``/v1/completions``.

Owns: the fields, as OpenAI's and vLLM's clients know them. Must not know: how they are honoured.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, FailFast, Field, Tag
from typing_extensions import TypeAliasType

from octavo.server.protocol.base import ResponseBody, Usage
from octavo.server.protocol.structured import StructuredFields


def _kind_of_prompt(prompt: Any) -> str:
    """Returns which alternative a prompt is measured against, so that an error names the element that is wrong."""
    if not isinstance(prompt, list):
        return "text"
    first = prompt[0] if prompt else ""
    return {int: "tokens", list: "token_lists"}.get(type(first), "texts")


# Named aliases, because a union hashes its members and the annotations have no hash. The first wrong element is enough: a list may
# have a million.
TokenIds = TypeAliasType("TokenIds", Annotated[list[int], FailFast()])
TokenIdLists = TypeAliasType("TokenIdLists", Annotated[list[TokenIds], FailFast()])
Texts = TypeAliasType("Texts", Annotated[list[str], FailFast(), Field(min_length=1)])
PromptField = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[TokenIds, Tag("tokens")]
    | Annotated[TokenIdLists, Tag("token_lists")],
    Discriminator(_kind_of_prompt),
]


class ContinuationFields(StructuredFields):
    """The fields of a continuation, whatever it continues."""

    best_of: int | None = Field(None, description="Generate this many and return the n whose tokens are most likely on average.")
    echo: bool | None = Field(None, description="Begin the text with the prompt.")
    logprobs: int | None = None
    suffix: Literal[""] | None = None


class CompletionRequest(ContinuationFields):
    """A text to continue, or several."""

    prompt: PromptField


class ForkRequest(ContinuationFields):
    """Another way to go on from inside an answer.

    Attributes:
        choice: which of the request's answers; the first if not given.
        at_token: how many of its tokens are kept, the prompt's included; all if not given.
        append: a text or token ids to go on with first.
        cache_salt: not allowed: it is that of the request.
    """

    choice: Annotated[int, Field(ge=0)] | None = None
    at_token: Annotated[int, Field(ge=1)] | None = None
    append: str | TokenIds | None = None
    cache_salt: None = None


class CompletionLogprobs(ResponseBody):
    """Log-probabilities, one entry per token. A token's text is what it made certain, so that the tokens joined are the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TokenLogprob(ResponseBody):
    """An entry of ``prompt_logprobs``."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, TokenLogprob] | None]


class CompletionChoice(ResponseBody):
    """One continuation. Its index is the prompt's number times n plus the choice's number."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(ResponseBody):
    """The continuations; also the form of a stream's chunks."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
