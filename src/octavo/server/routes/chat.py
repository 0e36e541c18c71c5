"""``/v1/chat/completions``.

Owns: which answer a request gets in which form. Must not know: how answers are made or written.
"""

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from octavo.server.body import JsonRoute, json_response
from octavo.server.call import Call, get_call
from octavo.server.chat_job import prepare_chat
from octavo.server.chat_writer import ChatWriter
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import fields_named, invalid
from octavo.server.generation import EventStream, collect
from octavo.server.protocol.base import ERROR_RESPONSES, STREAM_RESPONSES
from octavo.server.protocol.chat import ChatRequest, ChatResponse
from octavo.server.sampling import check_at_most

router = APIRouter(route_class=JsonRoute, tags=["generation"])


@router.post("/v1/chat/completions", response_model=ChatResponse, responses=STREAM_RESPONSES | ERROR_RESPONSES)
async def create_chat_completion(
    body: ChatRequest,
    request: Request,
    context: Annotated[ServerContext, Depends(get_context)],
    call: Annotated[Call, Depends(get_call)],
) -> Response:
    """Continues a conversation; with ``stream`` as server-sent events of the form `ChatChunk`."""
    body.check_stream()
    check_at_most("top_logprobs", body.top_logprobs, context.config.max_logprobs, "max_logprobs")
    if body.stream and body.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "prompt_logprobs is not allowed with stream=true")
    with fields_named(body.field_names()):
        job = await prepare_chat(body, context, call)
    writer = ChatWriter(
        id=f"chatcmpl-{call.request_id}",
        created=int(time.time()),
        model=context.model.name,
        tokenizer=context.model.tokenizer,
        num_choices=job.params.n,
        lead=_lead(body),
        num_top=body.num_logprobs(),
        includes_usage=body.includes_usage,
        returns_token_ids=bool(body.return_token_ids),
        tools=job.tools,
    )
    with fields_named(body.field_names()):
        answer = await context.engine.submit(job.submissions, streams=bool(body.stream))
    if body.stream:
        return EventStream(request, context, answer, writer)
    (result,) = await collect(request, context, answer)
    return json_response(writer.whole(result))


def _lead(body: ChatRequest) -> str:
    if not body.echo:
        return ""
    if not body.continue_final_message:
        raise invalid("echo", "echo is allowed only with continue_final_message=true: otherwise a new message begins")
    return body.messages[-1].text
