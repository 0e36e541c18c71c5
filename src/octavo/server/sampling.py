"""From a request's fields to `SamplingParams`.

Owns: the server's own limits on sampling fields. Must not know: prompts, results.
"""

from dataclasses import replace
from typing import Any

from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.server.config import ServerConfig
from octavo.server.errors import invalid
from octavo.server.protocol.base import GenerationFields, IdentityFields, RetainFields
from octavo.server.protocol.chat import ConversationFields

# Fields that mean the same in the request and in SamplingParams.
SHARED_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
)


# What a beam search reads of a request beside its identity; everything else of `GenerationFields` asks for something that it lacks.
BEAM_FIELDS = frozenset(
    {
        "n",
        "best_of",
        "max_tokens",
        "max_completion_tokens",
        "use_beam_search",
        "length_penalty",
        "early_stopping",
        "ignore_eos",
        "skip_special_tokens",
        "echo",
        "return_token_ids",
        "prompt",
        "messages",
        "at_token",
        "choice",
        "append",
        *IdentityFields.model_fields,
        *RetainFields.model_fields,
        *ConversationFields.model_fields,
    }
)


def make_beams(body: GenerationFields, config: ServerConfig, *, max_tokens: int | None) -> BeamSearchParams | None:
    """Returns the beam search that a request asks for; None if it asks for none.

    ``best_of`` is the number of beams, ``n`` how many of their answers are returned.

    Raises:
        RequestError, ApiError: a value is not allowed, or a field means nothing in a beam search.
    """
    if not body.use_beam_search:
        for name in ("length_penalty", "early_stopping"):
            if getattr(body, name) is not None:
                raise invalid(name, f"{name} is allowed only with use_beam_search=true")
        return None
    for name in type(body).model_fields:
        value = getattr(body, name)
        if name not in BEAM_FIELDS and value not in (None, False, [], {}) and (name, value) != ("temperature", 0):
            raise invalid(name, f"{name} is not allowed with use_beam_search=true")
    num_beams = getattr(body, "best_of", None) or body.n or 1
    check_at_most("n", num_beams, config.max_choices, "max_choices")
    given = {"length_penalty": body.length_penalty, "early_stopping": body.early_stopping, "ignore_eos": body.ignore_eos}
    given |= {"skip_special_tokens": body.skip_special_tokens}
    return BeamSearchParams(
        num_beams=num_beams,
        n=body.n or 1,
        max_tokens=max_tokens,
        **{name: value for name, value in given.items() if value is not None},
    )


def make_params(
    body: GenerationFields, defaults: SamplingParams, config: ServerConfig, *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """Returns the sampling parameters that a request asks for.

    Args:
        defaults: what counts where the request says nothing.
        max_tokens, logprobs: the request's, which the interfaces spell differently.

    Raises:
        RequestError: a value is not allowed.
        ApiError: a value is above the server's limits.
    """
    check_limits(body, config)
    check_at_most("logprobs", logprobs, config.max_logprobs, "max_logprobs")
    given: dict[str, Any] = {name: getattr(body, name) for name in SHARED_FIELDS if getattr(body, name) is not None}
    if body.logit_bias:
        given["logit_bias"] = {int(token): bias for token, bias in body.logit_bias.items()}
    return replace(defaults, **given, max_tokens=max_tokens, logprobs=logprobs)


def check_limits(body: GenerationFields, config: ServerConfig) -> None:
    """Refuses what is above the server's limits."""
    check_at_most("n", body.n, config.max_choices, "max_choices")
    check_at_most("prompt_logprobs", body.prompt_logprobs, config.max_logprobs, "max_logprobs")
    for name in ("stop", "bad_words"):
        texts = getattr(body, name)
        if isinstance(texts, list) and len(texts) > config.max_stop_strings:
            raise invalid(name, f"{name} has {len(texts)} texts; max_stop_strings={config.max_stop_strings} allows no more")


def check_at_most(name: str, value: int | None, limit: int, setting: str) -> None:
    """Refuses a value above a limit of the server."""
    if value is not None and value > limit:
        raise invalid(name, f"{name}={value} is above the server's {setting}={limit}")
