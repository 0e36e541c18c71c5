"""``/v1/responses``: made at once, as a stream or in the background; retrieved, cancelled and continued later.

Owns: which answer a request gets in which form, and the work in the background. Must not know: how answers are made or written.
"""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from octavo.server.answer import Answer
from octavo.server.body import JsonRoute, json_response
from octavo.server.call import Call, get_call
from octavo.server.chat_job import ChatJob, prepare_chat
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import ApiError, fields_named
from octavo.server.generation import collect, start_timer
from octavo.server.protocol.base import ERROR_RESPONSES, STREAM_RESPONSES
from octavo.server.protocol.chat import ChatMessage
from octavo.server.protocol.responses import FIELD_NAMES, DeletedResponse, InputItemList, ResponseObject, ResponsesRequest
from octavo.server.response_store import StoredResponse
from octavo.server.responses_writer import ResponseStream, ResponsesWriter, fail

router = APIRouter(prefix="/v1/responses", route_class=JsonRoute, tags=["responses"])
Context = Annotated[ServerContext, Depends(get_context)]
TheCall = Annotated[Call, Depends(get_call)]


@router.post("", response_model=ResponseObject, responses=STREAM_RESPONSES | ERROR_RESPONSES)
async def create_response(body: ResponsesRequest, request: Request, context: Context, call: TheCall) -> Response:
    """Answers an input, alone or after an earlier response; instructions are those of this request only."""
    body.check()
    earlier = _earlier(body, context, call)
    with fields_named(FIELD_NAMES):
        job = await prepare_chat(body.as_chat(earlier), context, call)
        writer = ResponsesWriter(_describe(body, job, context, call), job.tools)
        answer = await context.engine.submit(job.submissions, streams=bool(body.stream))
    stored = StoredResponse(writer.response, call.key, [*earlier, *body.messages()], _input_items(body, call))
    if body.store is not False:
        context.responses.add(stored)
    if body.background:
        _work_in_background(stored, writer, answer, context)
        return json_response(writer.response)
    if body.stream:
        return ResponseStream(request, context, answer, writer)
    try:
        (result,) = await collect(request, context, answer)
    except ApiError as error:
        fail(writer.response, error)
        raise
    return json_response(writer.whole(result))


@router.get("/{response_id}", responses=ERROR_RESPONSES)
async def get_response(response_id: str, context: Context, call: TheCall) -> ResponseObject:
    """Returns a response that is kept."""
    return context.responses.find(response_id, call.key, "response_id").response


@router.delete("/{response_id}", responses=ERROR_RESPONSES)
async def delete_response(response_id: str, context: Context, call: TheCall) -> DeletedResponse:
    """Forgets a response; one in the background is cancelled."""
    await cancel_response(response_id, context, call)
    context.responses.remove(response_id)
    return DeletedResponse(id=response_id)


@router.post("/{response_id}/cancel", responses=ERROR_RESPONSES)
async def cancel_response(response_id: str, context: Context, call: TheCall) -> ResponseObject:
    """Ends the work on a response in the background; one that is finished stays as it is."""
    stored = context.responses.find(response_id, call.key, "response_id")
    if stored.cancel is not None and stored.response.status == "in_progress":
        stored.response.status = "cancelled"
        stored.cancel()
    return stored.response


@router.get("/{response_id}/input_items", responses=ERROR_RESPONSES)
async def list_input_items(response_id: str, context: Context, call: TheCall) -> InputItemList:
    """Returns the input of a response, newest item first as OpenAI's interface does."""
    items = context.responses.find(response_id, call.key, "response_id").input_items[::-1]
    ids = [item["id"] for item in items]
    return InputItemList(data=items, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None)


def _earlier(body: ResponsesRequest, context: ServerContext, call: Call) -> list[ChatMessage]:
    if body.previous_response_id is None:
        return []
    return context.responses.find(body.previous_response_id, call.key, "previous_response_id").conversation()


def _describe(body: ResponsesRequest, job: ChatJob, context: ServerContext, call: Call) -> ResponseObject:
    """Returns the response as it stands before its first token."""
    given = body.model_dump(by_alias=True, exclude_none=True, include={"tools", "tool_choice", "text", "metadata"})
    return ResponseObject(
        id=f"resp_{call.request_id}",
        created_at=int(time.time()),
        model=context.model.name,
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        max_output_tokens=body.max_output_tokens,
        temperature=job.params.temperature,
        top_p=job.params.top_p,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        background=bool(body.background),
        store=body.store is not False,
        **given,
    )


def _input_items(body: ResponsesRequest, call: Call) -> list[dict[str, Any]]:
    """Returns the input as items that each have an id."""
    if isinstance(body.input, str):
        items: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "input_text", "text": body.input}]}]
    else:
        items = [item.model_dump(exclude_none=True) for item in body.input]
    return [{"id": f"item_{call.request_id}_{index}", "type": "message"} | item for index, item in enumerate(items)]


def _work_in_background(stored: StoredResponse, writer: ResponsesWriter, answer: Answer, context: ServerContext) -> None:
    timer = start_timer(context, answer)

    async def work() -> None:
        try:
            writer.whole((await answer.results())[0])
        except ApiError as error:
            fail(stored.response, error)
        finally:
            timer.cancel()
            context.engine.release(answer)

    task = asyncio.create_task(work())
    stored.cancel = lambda: context.engine.release(answer)
    task.add_done_callback(lambda _task: setattr(stored, "cancel", None))
