"""Prompts as requests give them: a text, token ids, or a list of either.

Owns: the way from there to a list of token ids. Must not know: what is done with them.
"""

from dataclasses import dataclass

from octavo.server.context import ServerContext
from octavo.server.errors import invalid

GivenPrompts = str | list[int] | list[str] | list[list[int]]


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and as token ids."""

    text: str
    token_ids: list[int]


async def read_prompts(name: str, given: GivenPrompts, context: ServerContext) -> list[Prompt]:
    """Returns a request's prompts, each as text and token ids.

    Args:
        name: the field that they were given in.

    Raises:
        ApiError, RequestError: there are too many, or one of them is no prompt of this model.
    """
    if isinstance(given, str):
        listed: list[str] | list[list[int]] = [given]
    elif given and isinstance(given[0], int):
        listed = [given]
    else:
        listed = given
    if len(listed) > context.config.max_prompts:
        raise invalid(name, f"{name} has {len(listed)} entries; max_prompts={context.config.max_prompts} allows no more")
    return [await read_prompt(name, prompt, context) for prompt in listed]


async def read_prompt(name: str, prompt: str | list[int], context: ServerContext) -> Prompt:
    """Returns one prompt as text and token ids.

    Raises:
        ApiError, RequestError: it is no prompt of this model.
    """
    model = context.model
    if isinstance(prompt, str):
        return Prompt(prompt, await model.encode(prompt, name=name))
    check_token_ids(name, prompt, model.vocab_size)
    return Prompt(model.tokenizer.decode(prompt, skip_special_tokens=False), prompt)


def check_token_ids(name: str, token_ids: list[int], vocab_size: int) -> None:
    """Refuses token ids that the model lacks."""
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise invalid(name, f"{name} has the token id {token_id:.6g}; token ids are 0 to {vocab_size - 1}")
