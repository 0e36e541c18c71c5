"""Bodies of ``/v1/embeddings``.

Owns: the fields, as OpenAI's clients know them. Must not know: how they are honoured.
"""

from typing import Literal

from pydantic import Field

from octavo.runner.pooling import PoolingKind
from octavo.server.protocol.base import IdentityFields, ResponseBody
from octavo.server.protocol.completions import PromptField


class EmbeddingsRequest(IdentityFields):
    """A text to embed, or several; as texts or as token ids."""

    input: PromptField
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description='"float" unless given: a list of numbers; "base64": little-endian float32.'
    )
    dimensions: int | None = Field(
        None, ge=1, description="Keep the first so many numbers and scale them to length 1 again; all unless given."
    )
    pooling: PoolingKind | None = Field(
        None,
        description='Of the hidden states after the final norm: "mean" of all tokens unless given, or "last" token alone.',
    )


class Embedding(ResponseBody):
    """One vector, of length 1."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(ResponseBody):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(ResponseBody):
    """The vectors, in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage
