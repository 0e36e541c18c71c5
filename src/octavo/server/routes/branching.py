"""``/octavo/requests/{id}/fork``: another way to go on from inside an answer.

Owns: where a branch begins and who may ask for it. Must not know: how answers are made or written.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from octavo.errors import RequestError
from octavo.server.body import JsonRoute
from octavo.server.call import Call, get_call
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import ApiError
from octavo.server.prompts import Prompt, check_token_ids
from octavo.server.protocol.base import ERROR_RESPONSES, STREAM_RESPONSES
from octavo.server.protocol.completions import CompletionResponse, ForkRequest
from octavo.server.routes.completions import check_continuation, continue_prompts

router = APIRouter(route_class=JsonRoute, prefix="/octavo", tags=["branching"])


@router.post("/requests/{request_id:path}/fork", response_model=CompletionResponse, responses=STREAM_RESPONSES | ERROR_RESPONSES)
async def fork_request(
    request_id: str,
    body: ForkRequest,
    request: Request,
    context: Annotated[ServerContext, Depends(get_context)],
    call: Annotated[Call, Depends(get_call)],
) -> Response:
    """Continues a request that is in the engine or left it lately, from any of its tokens on.

    The answer has the form of `/v1/completions`; sampling fields that are not given have their defaults. The original goes on as
    if nothing had happened.
    """
    check_continuation(body, context)
    point = await context.engine.call(
        lambda engine: (
            engine.branch_point(request_id, choice=body.choice or 0, at_token=body.at_token)
            if engine.has_request(request_id)
            else None
        )
    )
    if point is None or not call.may_share(point.cache_salt):
        raise ApiError(404, f"no request {request_id[:100]!r} is in the engine or left it lately", param="request_id")
    token_ids = [*point.token_ids, *await _appended(body, context)]
    prompt = Prompt(context.model.tokenizer.decode(token_ids, skip_special_tokens=False), token_ids)
    return await continue_prompts(body, [prompt], request, context, call, cache_salt=point.cache_salt)


async def _appended(body: ForkRequest, context: ServerContext) -> list[int]:
    if isinstance(body.append, str):
        try:
            return await context.model.encode(body.append, add_special_tokens=False)
        except RequestError as error:
            raise RequestError(error.message, field="append", hint=error.hint) from error
    check_token_ids("append", body.append or [], context.model.vocab_size)
    return body.append or []
