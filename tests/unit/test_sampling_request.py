"""`octavo.runner.sampling_request`: what a history does to the logits."""

import math

import numpy as np

from octavo.runner.sampling_request import SamplingRequest, bitmask_of
from octavo.sampling_params import SamplingParams

PROMPT = [5, 5, 5, 7]


def make(**fields):
    extra = {name: fields.pop(name) for name in ("end_token_ids", "bad_words") if name in fields}
    return SamplingRequest(SamplingParams(**fields), seed=1, choice_index=0, num_prompt_tokens=len(PROMPT), **extra)


def test_presence_and_frequency_see_the_answer_only():
    request = make(presence_penalty=0.5, frequency_penalty=0.25)
    assert request.adjustments([*PROMPT]) == {}
    assert request.adjustments([*PROMPT, 9, 9, 5]) == {9: (1.0, -1.0), 5: (1.0, -0.75)}


def test_repetition_sees_prompt_and_answer():
    assert make(repetition_penalty=2.0).adjustments([*PROMPT, 9]) == {5: (2.0, 0.0), 7: (2.0, 0.0), 9: (2.0, 0.0)}


def test_penalties_do_not_depend_on_how_often_they_are_asked():
    often, once = make(frequency_penalty=1.0), make(frequency_penalty=1.0)
    tokens = [*PROMPT, 9, 8, 9]
    for end in range(len(PROMPT), len(tokens)):
        often.adjustments(tokens[:end])
    assert often.adjustments(tokens) == once.adjustments(tokens)


def test_bias_adds_to_penalties():
    assert make(presence_penalty=1.0, logit_bias={9: 3.0, 2: -1.0}).adjustments([*PROMPT, 9]) == {9: (1.0, 2.0), 2: (1.0, -1.0)}


def test_end_and_stop_tokens_are_banned_until_min_tokens():
    request = make(min_tokens=2, stop_token_ids=[3], end_token_ids=frozenset({2}))
    banned = {2: (1.0, -math.inf), 3: (1.0, -math.inf)}
    assert request.adjustments([*PROMPT, 4]) == banned
    assert request.adjustments([*PROMPT, 4, 4]) == {}


def test_a_bad_word_is_banned_at_its_last_token():
    request = make(bad_words=((4, 6), (8,)))
    assert set(request.adjustments([*PROMPT])) == {8}
    assert set(request.adjustments([*PROMPT, 4])) == {8, 6}


def test_a_choice_has_its_own_history():
    lead = make(frequency_penalty=1.0)
    lead.adjustments([*PROMPT, 9])
    assert lead.for_choice(1).adjustments([*PROMPT, 3]) == {3: (1.0, -1.0)}


def test_bitmask_has_one_bit_per_token():
    mask = bitmask_of((0, 31, 32, 40), 41)
    assert mask.dtype == np.int32
    assert mask.view(np.uint32).tolist() == [2**31 + 1, 1 + 2**8]
