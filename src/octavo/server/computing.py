"""Prompts that are computed for their KV alone: prefixes that are kept, conversations that are saved.

Owns: the fields that give such a prompt. Must not know: what its KV is wanted for.
"""

from typing import Annotated

from fastapi import Request
from pydantic import Field

from octavo.outputs import RequestOutput
from octavo.sampling_params import COMPUTE_ONLY
from octavo.server.call import Call
from octavo.server.context import ServerContext
from octavo.server.generation import collect, make_submissions
from octavo.server.prompts import read_prompt
from octavo.server.protocol.base import IdentityFields
from octavo.server.protocol.chat import MAX_MESSAGES, ChatMessage, ConversationFields


class PromptFields(IdentityFields, ConversationFields):
    """A prompt, given as one or as messages."""

    prompt: str | list[int] | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None


async def compute_prompt(body: PromptFields, request: Request, context: ServerContext, call: Call) -> RequestOutput:
    """Computes the prompt and returns what the engine says of it; its KV is cached then.

    Raises:
        ApiError, RequestError: there is not one prompt, it is none of this model, or it could not be computed.
    """
    token_ids = await _read_token_ids(body, context)
    (submission,) = make_submissions(body, call, [token_ids], COMPUTE_ONLY)
    (result,) = await collect(request, context, await context.engine.submit([submission], streams=False))
    return result


async def _read_token_ids(body: PromptFields, context: ServerContext) -> list[int]:
    body.check_source(body.prompt, body.messages)
    if body.prompt is not None:
        return (await read_prompt("prompt", body.prompt, context)).token_ids
    _, token_ids = await context.model.encode_chat(body.prompt_of(body.messages or []))
    return token_ids
