"""Which tokens end an answer, and which sampling values a model brings."""

import pytest

from octavo.errors import CheckpointError
from octavo.models.generation_defaults import read_gguf_defaults, read_hf_defaults


class FakeTokenizer:
    """Knows a few tokens, of which all but ``<think>`` are special."""

    ids = {"</s>": 7, "<|im_end|>": 8, "<think>": 9}  # noqa: RUF012 - never changed

    def __init__(self, eos_id: int | None = None):
        self.eos_id = eos_id

    def token_id(self, token: str) -> int | None:
        return self.ids.get(token)

    def is_special(self, token_id: int) -> bool:
        return token_id != 9


def test_an_answer_ends_at_the_union_of_all_end_tokens():
    defaults = read_hf_defaults({"eos_token_id": 2}, {"eos_token_id": [2, 9]}, FakeTokenizer(eos_id=7))
    assert defaults.end_token_ids == {2, 7, 9}


def test_a_nested_text_config_counts_too():
    assert read_hf_defaults({"text_config": {"eos_token_id": [1, 106]}}, {}, FakeTokenizer()).end_token_ids == {1, 106}


def test_without_end_tokens_there_are_none():
    assert read_hf_defaults({"eos_token_id": None}, {}, FakeTokenizer()).end_token_ids == frozenset()


def test_overriding_one_sampling_value_leaves_the_end_tokens_alone():
    defaults = read_hf_defaults({"eos_token_id": 2}, {"temperature": 0.3}, FakeTokenizer())
    assert (defaults.end_token_ids, defaults.sampling) == ({2}, {"temperature": 0.3})


def test_sampling_values_are_those_that_sampling_params_has():
    given = {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0,
        "repetition_penalty": 1.05,
        "num_beams": 4,
        "do_sample": True,
    }
    sampling = read_hf_defaults({}, given, FakeTokenizer()).sampling
    assert sampling == {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05}


def test_do_sample_false_means_greedy():
    assert read_hf_defaults({}, {"do_sample": False, "temperature": 0.6}, FakeTokenizer()).sampling["temperature"] == 0


@pytest.mark.parametrize("value", ["2", 2.0, True, [1, "2"], -1, {"id": 2}])
def test_an_end_token_that_is_no_id_is_refused(value):
    with pytest.raises(CheckpointError, match="end-of-sequence"):
        read_hf_defaults({"eos_token_id": value}, {}, FakeTokenizer())


@pytest.mark.parametrize(("name", "value"), [("temperature", "0.7"), ("top_k", 5.5), ("top_p", True), ("min_p", [0.1])])
def test_a_sampling_value_of_the_wrong_type_is_named(name, value):
    with pytest.raises(CheckpointError, match=name):
        read_hf_defaults({}, {name: value}, FakeTokenizer())


def test_a_gguf_header_names_ends_of_documents_and_of_turns():
    metadata = {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 3, "tokenizer.ggml.bos_token_id": 1}
    assert read_gguf_defaults(metadata, FakeTokenizer(eos_id=2)).end_token_ids == {2, 3, 8}
