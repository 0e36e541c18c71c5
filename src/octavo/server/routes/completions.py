"""``/v1/completions``.

Owns: what the fields of a request mean. Must not know: how answers are made or written.
"""

import time
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from octavo.engine.beam_search import greedy_params
from octavo.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams
from octavo.server.body import JsonRoute, json_response
from octavo.server.call import Call, get_call
from octavo.server.completion_writer import CompletionWriter
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import invalid
from octavo.server.generation import EventStream, collect, make_submissions
from octavo.server.prompts import Prompt, read_prompts
from octavo.server.protocol.base import ERROR_RESPONSES, STREAM_RESPONSES
from octavo.server.protocol.completions import CompletionRequest, CompletionResponse, ContinuationFields
from octavo.server.sampling import check_at_most, make_beams, make_params

router = APIRouter(route_class=JsonRoute, tags=["generation"])


@router.post("/v1/completions", response_model=CompletionResponse, responses=STREAM_RESPONSES | ERROR_RESPONSES)
async def create_completion(
    body: CompletionRequest,
    request: Request,
    context: Annotated[ServerContext, Depends(get_context)],
    call: Annotated[Call, Depends(get_call)],
) -> Response:
    """Continues texts; with ``stream`` as server-sent events of the form `CompletionResponse`."""
    check_continuation(body, context)
    return await continue_prompts(body, await read_prompts("prompt", body.prompt, context), request, context, call)


async def continue_prompts(
    body: ContinuationFields,
    prompts: list[Prompt],
    request: Request,
    context: ServerContext,
    call: Call,
    *,
    cache_salt: str | None = None,
) -> Response:
    """Returns the answer to prompts.

    Args:
        body: it passed `check_continuation`.
        cache_salt: instead of the body's, which has none.
    """
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens or 1  # 0: only an echo; the engine makes one
    beams = make_beams(body, context.config, max_tokens=max_tokens)
    params = _make_params(body, context, max_tokens) if beams is None else greedy_params(beams)
    if context.config.log_prompts:
        call.log["prompts"] = [prompt.text for prompt in prompts]
    grammar = await context.grammars.compile(body.grammar())
    token_ids = [prompt.token_ids for prompt in prompts]
    submissions = make_submissions(body, call, token_ids, params, grammar=grammar, beams=beams)
    if cache_salt is not None:
        submissions = [replace(submission, cache_salt=cache_salt) for submission in submissions]
    writer = CompletionWriter(
        id=f"cmpl-{call.request_id}",
        created=int(time.time()),
        model=context.model.name,
        tokenizer=context.model.tokenizer,
        prompts=prompts,
        num_choices=1 if body.n is None else body.n,
        echoes=bool(body.echo),
        is_echo_only=body.max_tokens == 0,
        num_top=body.logprobs,
        skip_special_tokens=params.skip_special_tokens,
        includes_usage=body.includes_usage,
        returns_token_ids=bool(body.return_token_ids),
        shows_prompt_logprobs=body.prompt_logprobs is not None,
    )
    answer = await context.engine.submit(submissions, streams=bool(body.stream))
    if body.stream:
        return EventStream(request, context, answer, writer)
    return json_response(writer.whole(await collect(request, context, answer)))


def check_continuation(body: ContinuationFields, context: ServerContext) -> None:
    """Refuses another model, and combinations of fields that cannot be honoured."""
    body.check_stream()
    context.model.check_name(body.model)
    check_at_most("best_of", body.best_of, context.config.max_choices, "max_choices")
    num_choices = 1 if body.n is None else body.n
    if body.best_of is not None and body.best_of < num_choices:
        raise invalid("best_of", f"best_of={body.best_of} is below n={num_choices}")
    if body.best_of is not None and body.best_of > num_choices and body.stream:
        raise invalid("best_of", f"best_of={body.best_of} above n={num_choices} cannot be streamed: the best is known at the end")
    if body.stream and body.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "prompt_logprobs is not allowed with stream=true; echo and logprobs give the same")
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens", "max_tokens=0 is allowed only with echo=true: there would be nothing to return")


def _make_params(body: ContinuationFields, context: ServerContext, max_tokens: int) -> SamplingParams:
    """Returns the sampling parameters; echo needs more from the engine than is shown."""
    if body.echo and body.logprobs is not None:
        body = body.model_copy(update={"prompt_logprobs": max(body.logprobs, body.prompt_logprobs or 0)})
    defaults = replace(context.model.default_params, n=1 if body.n is None else body.n, best_of=body.best_of)
    return make_params(body, defaults, context.config, max_tokens=max_tokens, logprobs=body.logprobs)
