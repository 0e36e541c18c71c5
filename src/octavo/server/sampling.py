"""From a request's fields to `SamplingParams`.

Owns: the server's own limits on sampling fields. Must not know: prompts, results.
"""

from dataclasses import replace
from typing import Any

from octavo.sampling_params import SamplingParams
from octavo.server.config import ServerConfig
from octavo.server.errors import invalid
from octavo.server.protocol.base import GenerationFields

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
