"""``/v1/embeddings``.

Owns: what the fields of a request mean, and the form of its answer. Must not know: how vectors are made.
"""

import base64
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Request, Response

from octavo.sampling_params import SamplingParams
from octavo.server.body import JsonRoute, json_response
from octavo.server.call import Call, get_call
from octavo.server.context import ServerContext, get_context
from octavo.server.errors import invalid
from octavo.server.generation import collect, make_submissions, why_incomplete
from octavo.server.prompts import Prompt, read_prompts
from octavo.server.protocol.base import ERROR_RESPONSES
from octavo.server.protocol.embeddings import Embedding, EmbeddingsRequest, EmbeddingsResponse, EmbeddingsUsage

router = APIRouter(route_class=JsonRoute, tags=["embeddings"])


@router.post("/v1/embeddings", response_model=EmbeddingsResponse, responses=ERROR_RESPONSES)
async def create_embeddings(
    body: EmbeddingsRequest,
    request: Request,
    context: Annotated[ServerContext, Depends(get_context)],
    call: Annotated[Call, Depends(get_call)],
) -> Response:
    """Embeds texts: each as the mean of its tokens' final hidden states (or the last one's), scaled to length 1."""
    context.model.check_name(body.model)
    _check_dimensions(body, context)
    prompts = await read_prompts("input", body.input, context)
    _check_prompts(prompts, context)
    if context.config.log_prompts:
        call.log["prompts"] = [prompt.text for prompt in prompts]
    token_ids = [prompt.token_ids for prompt in prompts]
    submissions = make_submissions(body, call, token_ids, SamplingParams(), pooling=body.pooling or "mean")
    answer = await context.engine.submit(submissions, streams=False)
    results = await collect(request, context, answer)
    if any(result.embedding is None for result in results):
        raise why_incomplete(answer)
    num_tokens = sum(map(len, token_ids))
    return json_response(
        EmbeddingsResponse(
            data=[_describe(index, result.embedding, body) for index, result in enumerate(results) if result.embedding is not None],
            model=context.model.name,
            usage=EmbeddingsUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )
    )


def _check_dimensions(body: EmbeddingsRequest, context: ServerContext) -> None:
    hidden_size = context.model.hidden_size
    if body.dimensions is not None and body.dimensions > hidden_size:
        raise invalid("dimensions", f"dimensions={body.dimensions} is above the {hidden_size} that the model has")


def _check_prompts(prompts: list[Prompt], context: ServerContext) -> None:
    limit = context.model.max_model_len
    for prompt in prompts:
        if not prompt.token_ids:
            raise invalid("input", "input has no tokens: there is nothing to embed")
        if len(prompt.token_ids) > limit:
            raise invalid("input", f"input has {len(prompt.token_ids)} tokens; max_model_len={limit} allows no more")


def _describe(index: int, vector: np.ndarray, body: EmbeddingsRequest) -> Embedding:
    """Returns a vector in the form that was asked for."""
    if body.dimensions is not None:
        vector = vector[: body.dimensions]
        vector = vector / (np.linalg.norm(vector) or np.float32(1))
    if body.encoding_format == "base64":
        return Embedding(index=index, embedding=base64.b64encode(vector.astype("<f4").tobytes()).decode())
    return Embedding(index=index, embedding=vector.tolist())
