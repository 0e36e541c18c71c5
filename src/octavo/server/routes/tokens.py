"""``/tokenize`` and ``/detokenize``.

Owns: the bodies of both. Must not know: the engine.
"""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import FailFast

from octavo.server.body import JsonRoute
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import invalid
from octavo.server.prompts import check_token_ids
from octavo.server.protocol.base import ERROR_RESPONSES, RequestBody, ResponseBody
from octavo.server.protocol.chat import ChatMessage, ConversationFields

router = APIRouter(route_class=JsonRoute, tags=["tokens"], responses=ERROR_RESPONSES)
Context = Annotated[ServerContext, Depends(get_context)]


class TokenizeRequest(ConversationFields):
    """A text, or a conversation as the model gets to see it; exactly one of them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(ResponseBody):
    """The token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestBody):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[int], FailFast()]


class DetokenizeResponse(ResponseBody):
    """The text of the token ids, control tokens included."""

    prompt: str


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, context: Context) -> TokenizeResponse:
    """Returns the token ids that a prompt of ``/v1/completions`` or the messages of a chat have."""
    context.model.check_name(body.model)
    token_ids = await _token_ids(body, context)
    texts = [context.model.tokenizer.token_text(token_id) for token_id in token_ids] if body.return_token_strs else None
    return TokenizeResponse(count=len(token_ids), max_model_len=context.model.max_model_len, tokens=token_ids, token_strs=texts)


async def _token_ids(body: TokenizeRequest, context: ServerContext) -> list[int]:
    body.check_source(body.prompt, body.messages)
    if body.prompt is not None:
        return await context.model.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if body.add_special_tokens is not None:
        raise invalid("add_special_tokens", "add_special_tokens is allowed only with prompt")
    _, token_ids = await context.model.encode_chat(body.prompt_of(body.messages or []))
    return token_ids


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, context: Context) -> DetokenizeResponse:
    """Returns the text of token ids."""
    context.model.check_name(body.model)
    check_token_ids("tokens", body.tokens, context.model.vocab_size)
    return DetokenizeResponse(prompt=context.model.tokenizer.decode(body.tokens, skip_special_tokens=False))
