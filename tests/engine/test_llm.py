"""`octavo.LLM`: forms of prompts, order of results, refusals, streams."""

import pytest

import octavo.llm
from engine.tiny_engine import full_attention
from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.errors import ConfigError, RequestError

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def llm(models, monkeypatch):
    """An `LLM` over the tiny model."""
    monkeypatch.setattr(octavo.llm, "load_engine", lambda config: models.engine())
    return LLM("tiny")


def test_every_form_of_a_prompt_is_the_same_prompt(llm):
    text, ids = "hello", list(b"hello")
    forms = [text, ids, {"prompt": text}, {"prompt_token_ids": ids}, {"prompt": text, "cache_salt": "a", "priority": 1}]
    answers = [llm.generate(form, GREEDY)[0].outputs[0].token_ids for form in forms]
    assert answers == [answers[0]] * len(forms)
    assert [output.outputs[0].token_ids for output in llm.generate(forms, GREEDY)] == answers


@pytest.mark.parametrize("prompt", [{"prompt": "hello"}, {"prompt_token_ids": list(b"hello")}])
def test_a_field_of_a_prompt_that_is_none_counts_as_not_given(llm, prompt):
    nothing = dict.fromkeys(["prompt", "prompt_token_ids", "cache_salt", "priority", "retain"])
    assert llm.generate(nothing | prompt, GREEDY)[0].outputs == llm.generate(prompt, GREEDY)[0].outputs


def test_results_come_in_the_order_of_the_prompts(llm):
    params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in (9, 1, 5)]
    outputs = llm.generate(["one", "two", "three"], params)
    assert [output.prompt for output in outputs] == ["one", "two", "three"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 5]


def test_progress_is_reported_up_to_the_end(llm):
    seen = []
    llm.generate(["one", "two"], GREEDY, on_progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2, 2)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    "prompts",
    [
        ["good", {"prompt": "a", "priority": "high"}],
        ["good", {"prompt": "a", "cache_salt": ["x"]}],
        ["good", ""],
        ["good", [999]],
        ["good", {"prompt": "a", "prompt_token_ids": [1]}],
        ["good", {"text": "a"}],
        ["good", {}],
        ["good", {"prompt": "a", "text": None}],
        ["good", {"prompt": "a", 1: 2}],
    ],
)
def test_one_refused_prompt_refuses_the_call_and_leaves_nothing(llm, prompts):
    with pytest.raises(RequestError):
        llm.generate(prompts, GREEDY)
    assert not llm.engine.has_unfinished_requests
    assert llm.stats().memory.num_used_blocks == 0


def test_as_many_parameters_as_prompts(llm):
    with pytest.raises(RequestError, match="2 sampling_params for 3 prompts"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY])


def test_a_stream_yields_the_answer(llm):
    assert "".join(llm.stream("hello", GREEDY)) == llm.generate("hello", GREEDY)[0].outputs[0].text


def test_an_abandoned_stream_frees_its_blocks(llm):
    stream = llm.stream("hello", SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True))
    next(stream)
    assert llm.stats().num_running == 1
    stream.close()
    assert (llm.stats().num_running, llm.stats().memory.num_used_blocks) == (0, 0)


def test_several_choices_are_no_stream(llm):
    with pytest.raises(RequestError, match="n=2"):
        next(llm.stream("hello", SamplingParams(n=2)))


def test_a_model_without_a_template_cannot_chat(llm):
    with pytest.raises(RequestError, match="no chat template") as caught:
        llm.chat([{"role": "user", "content": "hello"}])
    assert "chat_template" in caught.value.hint


def test_an_unknown_setting_is_refused():
    with pytest.raises(ConfigError, match="did you mean block_size"):
        LLM("tiny", block_sizes=16)


def test_streams_beside_each_other_lose_nothing(llm):
    texts = [llm.generate(prompt, GREEDY)[0].outputs[0].text for prompt in ("hello", "world")]
    streams = [llm.stream(prompt, GREEDY) for prompt in ("hello", "world")]
    pieces = [[], []]
    for first, second in zip(*streams, strict=False):
        pieces[0].append(first)
        pieces[1].append(second)
    for stream, got in zip(streams, pieces, strict=True):
        got.extend(stream)
    assert ["".join(got) for got in pieces] == texts


def test_a_stream_goes_on_after_another_call(llm):
    text = llm.generate("hello", GREEDY)[0].outputs[0].text
    stream = llm.stream("hello", GREEDY)
    first = next(stream)
    llm.generate("another", GREEDY)
    assert first + "".join(stream) == text


def test_a_call_that_ends_early_leaves_no_result_behind(llm):
    def stop(done, total):
        if done == 1:
            raise KeyboardInterrupt

    params = [SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True) for length in (1, 9)]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], params, on_progress=stop)
    stream = llm.stream("a", params[0])
    next(stream, None)
    stream.close()
    assert not llm.engine._book.finished
    assert not llm.engine.has_unfinished_requests


def test_a_callers_id_blocks_no_automatic_one(llm):
    llm.engine.add_request("a", GREEDY, request_id="request-0")
    assert len({llm.engine.add_request("b", GREEDY) for _ in range(3)} - {"request-0"}) == 3


@pytest.mark.parametrize("prompts", [None, 5, {"a"}, {"prompt": None}, {"prompt_token_ids": "abc"}])
def test_what_is_no_prompt_is_refused(llm, prompts):
    with pytest.raises(RequestError):
        llm.generate(prompts, GREEDY)
    assert not llm.engine.has_unfinished_requests


@pytest.mark.parametrize("params", [3, "greedy", {"max_tokens": 3}, [GREEDY, {"n": 1}], [GREEDY, None]])
def test_what_is_no_sampling_params_is_refused_by_name(llm, params):
    with pytest.raises(RequestError, match="it takes SamplingParams") as caught:
        llm.generate(["a", "b"], params)
    assert caught.value.field == "sampling_params"
    assert not llm.engine.has_unfinished_requests
    with pytest.raises(RequestError, match="it takes SamplingParams"):
        next(llm.stream("a", params))


@pytest.mark.parametrize("conversations", [None, {"role": "user", "content": "hi"}, "hi", 3, [1], ["hi"], [[1]], [[]]])
def test_what_is_no_conversation_is_refused_by_name(llm, conversations):
    with pytest.raises(RequestError, match="a list of messages") as caught:
        llm.chat(conversations)
    assert caught.value.field == "conversations"


@pytest.mark.parametrize("arguments", [[("a", 1)], "a", 3])
def test_template_arguments_are_a_map(llm, arguments):
    with pytest.raises(RequestError, match="it takes a map") as caught:
        llm.chat([{"role": "user", "content": "hi"}], template_arguments=arguments)
    assert caught.value.field == "template_arguments"


def test_the_default_length_gives_way_to_a_short_model_and_an_asked_one_does_not(models, monkeypatch):
    monkeypatch.setattr(octavo.llm, "load_engine", lambda config: models.engine(max_model_len=10))
    llm = LLM("tiny")
    for params in (None, SamplingParams(ignore_eos=True)):
        (output,) = llm.generate("hello!", params)
        assert len(output.outputs[0].token_ids) == 4
        assert output.outputs[0].finish_reason == "length"
    with pytest.raises(RequestError, match="max_tokens=16"):
        llm.generate("hello!", SamplingParams(max_tokens=16))
    with pytest.raises(RequestError, match="max_model_len=10"):
        llm.generate("hello worl")


def test_the_default_length_gives_way_to_a_small_pool(models, monkeypatch):
    monkeypatch.setattr(octavo.llm, "load_engine", lambda config: models.engine(spec=full_attention(), kv_memory="2 blocks"))
    (output,) = LLM("tiny").generate("a" * 25, SamplingParams(ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 7


def test_a_beam_search_answers_every_prompt_best_first(llm):
    outputs = llm.beam_search(["one", "two"], BeamSearchParams(num_beams=3, n=2, max_tokens=5))
    assert [output.prompt for output in outputs] == ["one", "two"]
    for output in outputs:
        first, second = output.outputs
        assert first.beam_score >= second.beam_score
        assert first.text == llm.tokenizer.decode(first.token_ids)
        assert first.cumulative_logprob == pytest.approx(5 * first.beam_score)
    with pytest.raises(RequestError, match="it takes BeamSearchParams"):
        llm.beam_search("one", GREEDY)
