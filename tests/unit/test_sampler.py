"""`octavo.runner.sampler`: what is kept from step to step changes no draw."""

import numpy as np

from octavo.kernels.reference import ReferenceOperations
from octavo.runner.sampler import Sampler
from octavo.runner.sampling_request import SamplingRequest
from octavo.sampling_params import SamplingParams

VOCAB_SIZE = 64


def requests_of(*temperatures):
    return [
        SamplingRequest(SamplingParams(temperature=temperature), seed=row, choice_index=0, num_prompt_tokens=3)
        for row, temperature in enumerate(temperatures)
    ]


def draw(sampler, requests, token_ids, num_draws):
    logits = np.random.default_rng(len(token_ids[0])).standard_normal((len(requests), VOCAB_SIZE), np.float32)
    drawn = sampler.sample(logits, sampler.plan(0, requests, num_draws), token_ids)
    return [[token.token_id for token in tokens] for tokens in drawn]


def test_a_plan_is_kept_while_the_same_rows_are_sampled():
    sampler, requests = Sampler(ReferenceOperations()), requests_of(1.0, 0.7)
    plan = sampler.plan(0, requests, [1, 1])
    assert sampler.plan(0, list(requests), [1, 1]) is plan
    assert sampler.plan(1, requests[:1], [1]) is not plan and sampler.plan(0, requests, [1, 1]) is plan
    assert sampler.plan(0, requests, [1, 2]) is not plan
    assert sampler.plan(0, requests[::-1], [1, 1]) is not plan


def test_a_kept_plan_follows_the_positions():
    plan = Sampler(ReferenceOperations()).plan(0, requests_of(1.0, 0.7), [1, 2])
    for num_tokens in ([3, 9], [4, 10]):
        keys = plan.keys(num_tokens).tolist()
        assert keys == [[0, 0, num_tokens[0]], [1, 0, num_tokens[1]], [1, 1, num_tokens[1]]]


def test_a_kept_plan_draws_what_a_new_one_draws():
    kept, requests = Sampler(ReferenceOperations()), requests_of(1.0, 0.7, 1.5)
    token_ids = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    for step in range(6):
        num_draws = [1, 3, 1] if step == 0 else [1, 1, 1]
        drawn = draw(kept, requests, token_ids, num_draws)
        assert drawn == draw(Sampler(ReferenceOperations()), requests, token_ids, num_draws)
        assert [len(tokens) for tokens in drawn] == num_draws
        for known, tokens in zip(token_ids, drawn, strict=True):
            known.append(tokens[0])
