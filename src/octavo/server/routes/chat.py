"""``/v1/chat/completions``.

Owns: what the fields of a conversation's request mean. Must not know: how answers are made or written.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request, Response

from octavo.server.body import JsonRoute, json_response
from octavo.server.call import Call, get_call
from octavo.server.chat_writer import ChatWriter
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import invalid
from octavo.server.generation import EventStream, collect, make_submissions
from octavo.server.protocol.base import ERROR_RESPONSES, STREAM_RESPONSES
from octavo.server.protocol.chat import ChatRequest, ChatResponse
from octavo.server.sampling import check_at_most, make_params
from octavo.server.tools import Tools, read_tools

if TYPE_CHECKING:
    from octavo.engine.grammar import Grammar

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
    context.model.check_name(body.model)
    check_at_most("top_logprobs", body.top_logprobs, context.config.max_logprobs, "max_logprobs")
    if body.stream and body.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "prompt_logprobs is not allowed with stream=true")
    num_top = body.num_logprobs()
    params = make_params(body, context.model.default_params, context.config, max_tokens=body.answer_limit(), logprobs=num_top)
    tools = read_tools(body, context.model.chat_template)
    prompt = body.prompt_of(body.messages)
    if tools is not None:
        prompt, params = replace(prompt, tools=tools.descriptions), replace(params, skip_special_tokens=False)
    text, token_ids = await context.model.encode_chat(prompt)
    if context.config.log_prompts:
        call.log["prompts"] = [text]
    grammar = await context.grammars.compile(_grammar(body, tools))
    submissions = make_submissions(body, call, [token_ids], params, grammar)
    writer = ChatWriter(
        id=f"chatcmpl-{call.request_id}",
        created=int(time.time()),
        model=context.model.name,
        tokenizer=context.model.tokenizer,
        num_choices=params.n,
        lead=_lead(body),
        num_top=num_top,
        includes_usage=body.includes_usage,
        returns_token_ids=bool(body.return_token_ids),
        tools=tools,
    )
    answer = await context.engine.submit(submissions, streams=bool(body.stream))
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


def _grammar(body: ChatRequest, tools: Tools | None) -> "Grammar | None":
    """Returns what the answer must follow: its form, or the calls that it must consist of."""
    grammar, calls = body.grammar(), tools.forced_grammar() if tools is not None else None
    if grammar is not None and tools is not None:
        raise invalid(grammar.field, f"{grammar.field} is not allowed together with tools: a call would not fit it")
    if calls is not None:
        body.check_whole(calls)
    return grammar or calls
