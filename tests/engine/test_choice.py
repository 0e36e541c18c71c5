"""`octavo.engine.request.Choice`: the short path of plain tokens gives the answer that the long one gives."""

import random

import pytest

from engine.tiny_engine import ByteTokenizer
from octavo.engine.request import Choice, PromptInput, new_request
from octavo.runner.sampler import NO_TOKEN, TokenLogprobs
from octavo.runner.sampling_request import SamplingRequest
from octavo.sampling_params import SamplingParams
from octavo.scheduler.sequence import Sequence

PROMPT = [7, 8]
END, STOP = ord("e"), ord("s")
TOKENS = [*b"abces", *"\u00e9\u20ac\U0001f600".encode(), 0x80, 0xFF, 0]  # letters, whole and cut characters, a control token
KINDS = [
    {},
    {"stop": ["ab"]},
    {"logprobs": 0},
    {"detokenize": False},
    {"skip_special_tokens": False},
    {"stop_token_ids": [STOP], "min_tokens": 3},
    {"n": 1, "best_of": 2},
]


def make_choice(fields, max_tokens):
    params = SamplingParams(max_tokens=max_tokens, **fields)
    request = new_request("request", PromptInput(None, PROMPT), params, 0, None)
    sampling = SamplingRequest(params, seed=1, choice_index=0, num_prompt_tokens=len(PROMPT), end_token_ids=frozenset([END]))
    request.choices.append(Choice(request, Sequence(1, list(PROMPT), len(PROMPT) + max_tokens), sampling, ByteTokenizer()))
    return request.choices[0]


def take(choice, token_id, *, plainly):
    """Gives a choice a token, on the short path where it takes it there; returns what that adds, and whether it was."""
    delta = choice.append_plain(token_id) if plainly else None
    if delta is not None:
        return delta, True
    reports = choice.sampling.num_logprobs is not None
    return choice.append(token_id, TokenLogprobs([token_id], [-1.0], 1) if reports else None), False


@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_both_paths_give_the_same_answer(fields):
    source = random.Random(3)
    num_plain = 0
    for _ in range(200):
        max_tokens = source.randrange(fields.get("min_tokens", 1), 25)
        short, long = make_choice(fields, max_tokens), make_choice(fields, max_tokens)
        while short.output.finish_reason is None:
            token_id = source.choice([*TOKENS, NO_TOKEN]) if source.random() < 0.3 else ord("a") + source.randrange(3)
            delta, is_plain = take(short, token_id, plainly=True)
            assert delta == take(long, token_id, plainly=False)[0]
            num_plain += is_plain
            if source.random() < 0.1:
                short.result()
        assert short.result() == long.result()
        assert short.num_tokens == len(short.output.token_ids) == short.request.num_generated_tokens
    is_told_more = fields.keys() & {"stop", "logprobs", "detokenize", "best_of"}
    assert (num_plain == 0) if is_told_more else (num_plain > 500)
