"""What ends an answer, what its text is, and which requests are refused at the door."""

import pytest

from engine.tiny_engine import MAX_LEN, ByteTokenizer, answer, run
from octavo.engine.validation import RequestChecker
from octavo.errors import RequestError
from octavo.sampling_params import SamplingParams

PROMPT = list(range(65, 91))
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture
def greedy(models):
    """The greedy answer to PROMPT, long enough to cut."""
    return answer(models.engine(), [PROMPT], SamplingParams(max_tokens=40, **GREEDY))[0].outputs[0]


def test_the_streamed_text_is_the_text(models):
    engine = models.engine()
    requests = [
        engine.add_request([*PROMPT, index], SamplingParams(max_tokens=50, n=2, temperature=1.0, seed=index, stop=["e", "\ufffd"]))
        for index in range(8)
    ]
    pieces = {}
    while engine.has_unfinished_requests:
        for delta in engine.step():
            text, tokens = pieces.setdefault((delta.request_id, delta.index), ([], []))
            text.append(delta.text)
            tokens.extend(delta.token_ids)
    for request_id in requests:
        for choice in engine.take(request_id).outputs:
            text, tokens = pieces[request_id, choice.index]
            assert "".join(text) == choice.text
            assert tokens == choice.token_ids
            assert all(stop not in choice.text for stop in ("e", "\ufffd"))


def test_an_end_token_ends_the_answer(models, greedy):
    end = greedy.token_ids[3]
    engine = models.engine(end_token_ids=(end,))
    output = answer(engine, [PROMPT], SamplingParams(max_tokens=40, temperature=0.0))[0].outputs[0]
    first = greedy.token_ids.index(end)
    assert output.token_ids == greedy.token_ids[: first + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    assert output.text == bytes(greedy.token_ids[:first]).replace(b"\0", b"").decode(errors="replace")


def test_ignore_eos_goes_on_but_a_stop_token_still_stops(models, greedy):
    end = greedy.token_ids[3]
    engine = models.engine(end_token_ids=(end,))
    goes_on = answer(engine, [PROMPT], SamplingParams(max_tokens=40, **GREEDY))[0].outputs[0]
    stops = answer(engine, [PROMPT], SamplingParams(max_tokens=40, stop_token_ids=[end], **GREEDY))[0].outputs[0]
    assert goes_on.token_ids == greedy.token_ids
    assert (stops.finish_reason, stops.stop_reason) == ("stop", end)


def test_min_tokens_holds_every_end_down(models, greedy):
    ends = tuple(greedy.token_ids[2:4])
    engine = models.engine(end_token_ids=ends)
    params = SamplingParams(max_tokens=12, min_tokens=6, temperature=0.0, stop_token_ids=[greedy.token_ids[0]])
    output = answer(engine, [PROMPT], params)[0].outputs[0]
    assert len(output.token_ids) >= 6
    assert not {*ends, greedy.token_ids[0]} & set(output.token_ids[:6])


def test_the_length_limits_are_exact(models):
    engine = models.engine(kv_memory="60 blocks")
    for num_prompt, num_new in ((MAX_LEN - 1, 1), (MAX_LEN - 2, 2), (1, MAX_LEN - 1)):
        output = answer(engine, [[7] * num_prompt], SamplingParams(max_tokens=num_new, **GREEDY))[0].outputs[0]
        assert (len(output.token_ids), output.finish_reason) == (num_new, "length")
    unlimited = answer(engine, [[7] * (MAX_LEN - 3)], SamplingParams(max_tokens=None, **GREEDY))[0].outputs[0]
    assert len(unlimited.token_ids) == 3
    for num_prompt, num_new in ((MAX_LEN, 1), (MAX_LEN, None), (MAX_LEN + 1, None), (MAX_LEN - 1, 2), (1, 10**9)):
        with pytest.raises(RequestError, match=f"max_model_len={MAX_LEN}"):
            engine.add_request([7] * num_prompt, SamplingParams(max_tokens=num_new))
    assert not engine.has_unfinished_requests


@pytest.mark.parametrize("prompt", ["", [], [-1], [256], [2**63], [1.5], [True], ["a"], [None], None, 5, b"abc"])
def test_a_prompt_that_is_none_is_refused(models, prompt):
    with pytest.raises(RequestError) as caught:
        models.engine().add_request(prompt, SamplingParams())
    assert caught.value.field == "prompt"


def test_end_tokens_and_bad_words_that_the_model_lacks_change_nothing(models, greedy):
    engine = models.engine(end_token_ids=(300,))
    assert answer(engine, [PROMPT], SamplingParams(max_tokens=40, min_tokens=6, temperature=0.0))[0].outputs[0].text == greedy.text
    checker = RequestChecker(ByteTokenizer(), 122, MAX_LEN, frozenset())
    assert checker.bad_words(SamplingParams(bad_words=["zany", "an"])) == ((97, 110), (32, 97, 110))


@pytest.mark.parametrize("is_rendered", [False, True])
def test_a_text_with_a_token_that_the_model_lacks_is_refused(is_rendered):
    checker = RequestChecker(ByteTokenizer(), 122, MAX_LEN, frozenset())
    assert checker.prompt("any", is_rendered=is_rendered).token_ids == [97, 110, 121]
    with pytest.raises(RequestError, match="prompt has 122; token ids are 0 to 121"):
        checker.prompt("zany", is_rendered=is_rendered)


def test_only_allowed_tokens_are_chosen(models):
    params = SamplingParams(max_tokens=20, allowed_token_ids=[65, 70, 255], temperature=1.0, ignore_eos=True)
    output = answer(models.engine(), [PROMPT], params)[0].outputs[0]
    assert set(output.token_ids) <= {65, 70, 255}


def test_allowed_tokens_that_are_all_banned_are_refused(models):
    engine = models.engine(end_token_ids=(65,))
    for fields in ({"bad_words": ["A"]}, {"min_tokens": 3}):
        with pytest.raises(RequestError, match="all banned") as caught:
            engine.add_request(PROMPT, SamplingParams(allowed_token_ids=[65], max_tokens=4, **fields))
        assert caught.value.field == "allowed_token_ids"


def test_bad_words_never_appear(models, greedy):
    word = bytes(greedy.token_ids[4:6]).decode("latin-1")
    engine = models.engine()
    if not word.isascii():
        word = "AB"
        greedy = answer(engine, [PROMPT], SamplingParams(max_tokens=20, logit_bias={65: 50.0}, **GREEDY))[0].outputs[0]
    output = answer(engine, [PROMPT], SamplingParams(max_tokens=40, bad_words=[word], **GREEDY))[0].outputs[0]
    assert word.encode() not in bytes(output.token_ids)


def test_a_logit_bias_decides(models):
    output = answer(models.engine(), [PROMPT], SamplingParams(max_tokens=5, logit_bias={66: 1000.0}, **GREEDY))[0].outputs[0]
    assert output.token_ids == [66] * 5
    assert output.text == "BBBBB"


def test_logprobs_are_of_the_raw_distribution(models):
    engine = models.engine()
    plain = answer(engine, [PROMPT], SamplingParams(max_tokens=1, logprobs=5, **GREEDY))[0].outputs[0].logprobs[0]
    forced = {"logit_bias": {66: 1000.0}, "temperature": 0.3, "top_p": 0.5, "seed": 1}
    biased = answer(engine, [PROMPT], SamplingParams(max_tokens=1, logprobs=5, **forced))[0].outputs[0].logprobs[0]
    assert next(iter(biased)) == 66
    assert all(biased[token] == plain[token] for token in biased.keys() & plain.keys())
    num_likelier = sum(1 for token in range(256) if token in plain and plain[token].logprob > biased[66].logprob)
    assert biased[66].rank == 1 + num_likelier or biased[66].rank > 5


def test_the_chosen_token_comes_first_and_alternatives_follow_by_rank(models):
    params = SamplingParams(max_tokens=8, logprobs=3, temperature=1.5, seed=4)
    for entry in answer(models.engine(), [PROMPT], params)[0].outputs[0].logprobs:
        ranks = [value.rank for value in entry.values()]
        assert sorted(ranks)[:3] == [1, 2, 3]
        assert len(entry) in (3, 4)
        alternatives = [value.logprob for value in list(entry.values())[1:]]
        assert alternatives == sorted(alternatives, reverse=True)


def test_a_seed_is_reported_and_repeats(models):
    engine = models.engine(seed=None)
    first = answer(engine, [PROMPT], SamplingParams(max_tokens=12, temperature=1.0))[0].outputs[0]
    again = answer(engine, [PROMPT], SamplingParams(max_tokens=12, temperature=1.0, seed=first.seed))[0].outputs[0]
    other = answer(engine, [PROMPT], SamplingParams(max_tokens=12, temperature=1.0))[0].outputs[0]
    assert again.token_ids == first.token_ids != other.token_ids
    assert answer(engine, [PROMPT], SamplingParams(max_tokens=1, temperature=0.0))[0].outputs[0].seed is None


def test_an_engine_seed_makes_whole_runs_repeat(models):
    params = SamplingParams(max_tokens=8, temperature=1.0)
    runs = [[output.outputs[0].token_ids for output in answer(models.engine(seed=5), [PROMPT] * 3, params)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert len({tuple(tokens) for tokens in runs[0]}) == 3


def test_an_abandoned_cut_character_becomes_one_replacement(models):
    params = SamplingParams(max_tokens=3, allowed_token_ids=[0xF0, 0x9F, 0x98], logit_bias={0xF0: 0.0}, **GREEDY)
    engine = models.engine()
    output = answer(engine, [PROMPT], params)[0].outputs[0]
    assert output.text == bytes(output.token_ids).decode(errors="replace")


def test_without_detokenising_there_is_no_text(models):
    output = answer(models.engine(), [PROMPT], SamplingParams(max_tokens=5, detokenize=False, **GREEDY))[0].outputs[0]
    assert (output.text, len(output.token_ids)) == ("", 5)


def test_metrics_are_in_order(models):
    engine = models.engine()
    request_id = engine.add_request(PROMPT, SamplingParams(max_tokens=3, **GREEDY))
    run(engine)
    metrics = engine.take(request_id).metrics
    assert metrics.arrival_time <= metrics.first_scheduled_time <= metrics.first_token_time <= metrics.finished_time
    assert metrics.queue_ms <= metrics.ttft_ms


def test_text_held_back_is_released_when_nothing_is_left_to_choose(models):
    params = SamplingParams(max_tokens=9, stop=["ab"], allowed_token_ids=[97, 98], bad_words=["b", "aa", " aa"], ignore_eos=True)
    output = answer(models.engine(), [PROMPT], params)[0].outputs[0]
    assert (output.text, output.token_ids) == ("a", [97])
    assert output.stop_reason == "no token is allowed here"
