"""`octavo.sampling_params`: every field is checked, and the message names field, value and range."""

import math

import pytest

from octavo.errors import RequestError
from octavo.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", True),
        ("temperature", "1"),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("min_p", -0.1),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -math.inf),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("n", 0),
        ("n", 10**6),
        ("seed", -1),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("max_tokens", 10**12),
        ("min_tokens", -1),
        ("logprobs", -1),
        ("logprobs", 10**9),
        ("prompt_logprobs", True),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", ["x"] * 65),
        ("stop_token_ids", [1.0]),
        ("stop_token_ids", "12"),
        ("allowed_token_ids", []),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: 1e39}),
        ("bad_words", [""]),
        ("bad_words", "Pa ris"),
        ("ignore_eos", 1),
        ("skip_special_tokens", None),
    ],
)
def test_a_value_out_of_range_is_refused_by_field_and_value(field, value):
    with pytest.raises(RequestError, match="is not allowed: it must be") as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert field in str(caught.value)


def test_min_tokens_may_not_exceed_max_tokens():
    with pytest.raises(RequestError, match="at most max_tokens=4"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_stop_strings_need_text():
    with pytest.raises(RequestError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_one_stop_string_is_a_list_of_one():
    assert SamplingParams(stop="END").stop == ("END",)


@pytest.mark.parametrize("temperature", [0, 0.0, -0.0, 1e-6, 1e-30, 1e-45])
def test_tiny_temperatures_are_greedy(temperature):
    assert SamplingParams(temperature=temperature).is_greedy


@pytest.mark.parametrize(("field", "value"), [("stop_token_ids", [16]), ("allowed_token_ids", [3, -1]), ("logit_bias", {99: 1.0})])
def test_token_ids_outside_the_vocabulary_are_refused(field, value):
    with pytest.raises(RequestError, match="a token id from 0 to 15") as caught:
        SamplingParams(**{field: value}).check_vocabulary(16)
    assert caught.value.field == field


@pytest.mark.parametrize("value", [[1], [(1, 2.0)], "a", 3, None])
def test_biases_are_a_map(value):
    with pytest.raises(RequestError, match="a map from token ids") as caught:
        SamplingParams(logit_bias=value)
    assert caught.value.field == "logit_bias"
