"""``/v1/messages`` and ``/v1/messages/count_tokens``.

Owns: which answer a request gets in which form. Must not know: how answers are made or written.
"""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from octavo.server.body import JsonRoute, json_response
from octavo.server.call import Call, get_call
from octavo.server.chat_job import prepare_chat
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import fields_named
from octavo.server.generation import collect
from octavo.server.messages_writer import MessageStream, MessagesWriter
from octavo.server.protocol.base import ERROR_RESPONSES, STREAM_RESPONSES
from octavo.server.protocol.messages import (
    FIELD_NAMES,
    CountTokensRequest,
    CountTokensResponse,
    MessagesRequest,
    MessagesResponse,
)
from octavo.server.tools import read_tools

router = APIRouter(route_class=JsonRoute, tags=["generation"])
Context = Annotated[ServerContext, Depends(get_context)]


@router.post("/v1/messages", response_model=MessagesResponse, responses=STREAM_RESPONSES | ERROR_RESPONSES)
async def create_message(
    body: MessagesRequest, request: Request, context: Context, call: Annotated[Call, Depends(get_call)]
) -> Response:
    """Continues a conversation in the form of Anthropic's interface, errors included."""
    with fields_named(FIELD_NAMES):
        job = await prepare_chat(body.as_chat(), context, call)
        num_prompt_tokens = len(job.submissions[0].prompt_token_ids)
        writer = MessagesWriter(f"msg_{call.request_id}", context.model.name, num_prompt_tokens, job.tools)
        answer = await context.engine.submit(job.submissions, streams=bool(body.stream))
    if body.stream:
        return MessageStream(request, context, answer, writer)
    (result,) = await collect(request, context, answer)
    return json_response(writer.whole(result))


@router.post("/v1/messages/count_tokens", responses=ERROR_RESPONSES)
async def count_tokens(body: CountTokensRequest, context: Context) -> CountTokensResponse:
    """Returns how many tokens the conversation's prompt has."""
    context.model.check_name(body.model)
    chat = body.as_chat()
    tools = read_tools(chat, context.model.chat_template)
    prompt = chat.prompt_of(chat.messages)
    _, token_ids = await context.model.encode_chat(prompt if tools is None else replace(prompt, tools=tools.descriptions))
    return CountTokensResponse(input_tokens=len(token_ids))
