"""What every generating route does between its request body and its response.

Owns: watching the client and the clock while an answer is made, and the event stream. Must not know: the forms of bodies.

Invariants:
1. A client that leaves, in whatever state its request is, leaves nothing in the engine after the current step.
2. Nothing of a stream is sent before the engine accepted the request.
3. A stream that began ends with its interface's last event, and with a finish reason for each choice or an error.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from fastapi import Request, Response
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from octavo.outputs import RequestOutput
from octavo.runner.pooling import PoolingKind
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.server.answer import Answer, PromptDelta
from octavo.server.call import Call, call_of
from octavo.server.context import ServerContext
from octavo.server.errors import ApiError
from octavo.server.protocol.base import IdentityFields, PromptTokensDetails, RetainFields, Usage
from octavo.server.submission import Submission

if TYPE_CHECKING:
    from octavo.engine.grammar import CompiledGrammar

DONE = b"data: [DONE]\n\n"
SEND_SECONDS = 10.0  # what a client has to take the rest of a stream after the time limit of its request


class StreamWriter(Protocol):
    """Turns what arrives into events of one of the interfaces."""

    def start(self) -> bytes:
        """Returns what a stream begins with."""

    def write(self, deltas: list[PromptDelta]) -> bytes:
        """Returns the events of some deltas."""

    def end(self, results: list[RequestOutput]) -> bytes:
        """Returns the events after the last delta."""


def make_submissions(
    body: IdentityFields,
    call: Call,
    prompts: list[list[int]],
    params: SamplingParams,
    *,
    grammar: "CompiledGrammar | None" = None,
    pooling: PoolingKind | None = None,
    beams: BeamSearchParams | None = None,
) -> list[Submission]:
    """Returns an engine request for each prompt."""
    call.take_request_id(body.request_id)
    call.log.update({name: value for name in ("user", "safety_identifier") if (value := getattr(body, name, None)) is not None})
    suffixes = [""] if len(prompts) == 1 else [f"-{index}" for index in range(len(prompts))]
    priority, salt = call.priority(body.priority), call.salt(body.cache_salt)
    retain = body.retentions() if isinstance(body, RetainFields) else None
    return [
        Submission(call.request_id + suffix, prompt, params, call.key, priority, salt, grammar, pooling, retain, beams)
        for suffix, prompt in zip(suffixes, prompts, strict=True)
    ]


@asynccontextmanager
async def attend(request: Request, context: ServerContext, answer: Answer) -> AsyncIterator[None]:
    """Watches client and clock while an answer is made; afterwards the answer is released, whatever happened."""
    call = call_of(request)

    def on_gone(watcher: asyncio.Task) -> None:
        if not watcher.cancelled():
            call.is_gone = True
            context.engine.release(answer)

    watcher = asyncio.create_task(_wait_until_gone(request.receive))
    watcher.add_done_callback(on_gone)
    timer = start_timer(context, answer)
    try:
        yield
    finally:
        timer.cancel()
        watcher.cancel()
        context.engine.release(answer)


def start_timer(context: ServerContext, answer: Answer) -> asyncio.TimerHandle:
    """Lets an answer end where it stands when its time is over."""
    seconds = context.config.max_request_seconds
    late = ApiError(503, f"nothing was generated within max_request_seconds={seconds}", code="timeout")
    return asyncio.get_running_loop().call_later(seconds, context.engine.cut_short, answer, late)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def collect(request: Request, context: ServerContext, answer: Answer) -> list[RequestOutput]:
    """Waits for all results of an answer.

    Raises:
        ApiError: the answer failed, or was cut short before its first token.
    """
    async with attend(request, context, answer):
        results = await answer.results()
    note_results(call_of(request), context, results)
    if not any(output.token_ids for result in results for output in result.outputs) and all(
        output.finish_reason == "abort" for result in results for output in result.outputs
    ):
        raise why_incomplete(answer)
    return results


def why_incomplete(answer: Answer) -> ApiError:
    """Returns the error of an answer that was cut short before it was worth anything."""
    return answer.why_cut or ApiError(503, "the request was given up", code="aborted")


def note_results(call: Call, context: ServerContext, results: list[RequestOutput]) -> None:
    """Puts into the access log what came out."""
    outputs = [output for result in results for output in result.outputs]
    call.log["prompt_tokens"] = sum(len(result.prompt_token_ids) for result in results)
    call.log["completion_tokens"] = sum(len(output.token_ids) for output in outputs)
    call.log["finish_reason"] = ",".join(sorted({output.finish_reason or "" for output in outputs}))
    if context.config.log_prompts:
        call.log["answers"] = [output.text for output in outputs]


def make_usage(results: list[RequestOutput]) -> Usage:
    """Returns the token counts of a request."""
    num_prompt = sum(len(result.prompt_token_ids) for result in results)
    num_completion = sum(result.num_generated_tokens for result in results)
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(result.num_prefix_hit_tokens for result in results)),
    )


def event(body: object) -> bytes:
    """Returns a server-sent event with a JSON body."""
    return b"data: " + to_json(body) + b"\n\n"


class EventStream(Response):
    """Sends an answer as server-sent events while it is made."""

    media_type = "text/event-stream"
    last_event = DONE

    def __init__(self, request: Request, context: ServerContext, answer: Answer, writer: StreamWriter):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._request = request
        self._context = context
        self._answer = answer
        self._writer = writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_body(data: bytes, *, more_body: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more_body})

        async with attend(self._request, self._context, self._answer):
            async with asyncio.timeout(self._context.config.max_request_seconds + SEND_SECONDS):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send_body(self._writer.start())
                await send_body(await self._send_deltas(send_body) + self.last_event, more_body=False)

    async def _send_deltas(self, send_body: Callable) -> bytes:
        """Sends what arrives until the end and returns the last events."""
        try:
            while deltas := await self._answer.next_deltas():
                await send_body(self._writer.write(deltas))
            results = await self._answer.results()
        except ApiError as error:
            return self.describe(error)
        note_results(call_of(self._request), self._context, results)
        return self._writer.end(results)

    def describe(self, error: ApiError) -> bytes:
        """Returns the event for an answer that failed after its stream began."""
        return event(error.body())
