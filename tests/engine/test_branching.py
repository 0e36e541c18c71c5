"""Forks of answers, finished or in flight, and the best of several."""

import random

import pytest

import octavo.llm
from engine.tiny_engine import answer, bits, full_attention, run
from octavo import LLM, SamplingParams
from octavo.engine import branching
from octavo.errors import RequestError

PROMPT = list(range(1, 38))
SAMPLED = SamplingParams(max_tokens=30, temperature=1.0, seed=5, logprobs=1, ignore_eos=True)
NO_CACHE = {"enable_prefix_caching": False, "kv_memory": "100 blocks"}


@pytest.fixture
def llm(models, monkeypatch):
    monkeypatch.setattr(octavo.llm, "load_engine", lambda config: models.engine(kv_memory="200 blocks"))
    return LLM("tiny")


@pytest.mark.parametrize("at_token", [1, 16, 37, 38, 48, 49, 60, 66, 67])
def test_a_branch_computes_only_what_it_adds_and_gives_the_same_bits(models, llm, at_token):
    (whole,) = llm.generate({"prompt_token_ids": PROMPT}, SAMPLED)
    tokens = [*PROMPT, *whole.outputs[0].token_ids]
    before = llm.stats().num_computed_tokens
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=9, logprobs=1, ignore_eos=True)
    (branch,) = llm.fork(whole.request_id, at_token, params)
    # the token that ended the answer was drawn, not computed: it is the branch's to compute
    assert branch.num_prefix_hit_tokens == min(at_token, len(tokens)) - 1
    assert llm.stats().num_computed_tokens - before == 1 + 7
    assert bits(branch) == bits(answer(models.engine(**NO_CACHE), [tokens[:at_token]], params)[0])


def test_a_branch_with_the_same_seed_goes_the_same_way(llm):
    (whole,) = llm.generate({"prompt_token_ids": PROMPT}, SAMPLED)
    (branch,) = llm.fork(
        whole.request_id, len(PROMPT) + 10, SamplingParams(max_tokens=20, temperature=1.0, seed=5, ignore_eos=True)
    )
    assert branch.outputs[0].token_ids == whole.outputs[0].token_ids[10:]
    (fresh,) = llm.fork(whole.request_id, len(PROMPT) + 10)
    assert len(fresh.outputs[0].token_ids) == 30
    assert fresh.outputs[0].seed != 5


def test_branches_run_side_by_side_on_shared_blocks(models, monkeypatch):
    monkeypatch.setattr(octavo.llm, "load_engine", lambda config: models.engine(spec=full_attention(), kv_memory="200 blocks"))
    llm = LLM("tiny")
    prompt = [1 + token % 250 for token in range(150)]
    (whole,) = llm.generate({"prompt_token_ids": prompt}, SAMPLED)
    params = [SamplingParams(max_tokens=10, temperature=1.0, seed=seed, n=2, ignore_eos=True) for seed in range(4)]
    before = llm.stats()
    branches = llm.fork(whole.request_id, 165, params, append=[7, 8])
    assert [branch.prompt_token_ids[-2:] for branch in branches] == [[7, 8]] * 4
    answers = {tuple(choice.token_ids) for branch in branches for choice in branch.outputs}
    assert len(answers) == 8
    assert llm.stats().num_steps - before.num_steps <= 12  # all eight in the same steps


def test_append_takes_text(llm):
    (whole,) = llm.generate("hello", SAMPLED)
    (branch,) = llm.fork(whole.request_id, 5, SAMPLED, append=" wörld")
    assert branch.prompt_token_ids == list("hello wörld".encode())


def test_a_running_answer_branches_and_goes_on(models, llm):
    (expected,) = llm.generate({"prompt_token_ids": PROMPT}, SAMPLED)
    llm.engine.reset_prefix_cache()
    stream = llm.stream({"prompt_token_ids": PROMPT}, SAMPLED, request_id="mine")
    pieces = [next(stream) for _ in range(12)]
    running = llm.engine.peek("mine").outputs[0].token_ids
    before = llm.stats().num_computed_tokens
    params = SamplingParams(max_tokens=4, temperature=0.0, logprobs=1)
    (branch,) = llm.fork("mine", None, params)
    assert branch.prompt_token_ids == PROMPT + running[: len(branch.prompt_token_ids) - len(PROMPT)]
    assert branch.num_prefix_hit_tokens == len(branch.prompt_token_ids) - 1
    assert llm.stats().num_computed_tokens - before == 2 * 4  # the branch's steps, in which the stream went on
    assert "".join(pieces) + "".join(stream) == expected.outputs[0].text
    assert bits(branch) == bits(answer(models.engine(**NO_CACHE), [branch.prompt_token_ids], params)[0])


def test_every_moment_of_a_running_answer_can_be_branched(models):
    engine, source = models.engine(kv_memory="40 blocks"), random.Random(1)
    parent = engine.add_request(PROMPT, SAMPLED)
    branches = []
    while engine.has_unfinished_requests:
        engine.step()
        engine.check_invariants()
        if engine.is_in_flight(parent) and source.random() < 0.3:
            at_token = source.choice([None, source.randint(1, len(PROMPT))])
            point = engine.branch_point(parent, at_token=at_token)
            branches.append((point.token_ids, engine.add_request(point.token_ids, SAMPLED)))
            engine.check_invariants()
    assert len(branches) > 4
    alone = models.engine(**NO_CACHE)
    for token_ids, request_id in branches:
        assert bits(engine.take(request_id)) == bits(answer(alone, [token_ids], SAMPLED)[0])


@pytest.mark.parametrize("state", ["waiting", "running", "preempted", "finished", "evicted", "aborted"])
def test_a_branch_of_a_request_in_any_state_gives_the_same_bits(models, state):
    engine = models.engine(spec=full_attention(), kv_memory="20 blocks", max_num_seqs=2)
    request_id = engine.add_request(PROMPT, SAMPLED)
    for _ in range(0 if state == "waiting" else 9):
        engine.step()
    if state == "preempted":
        engine._scheduler._preempt(engine._scheduler.running[0])
    if state in ("finished", "evicted"):
        run(engine)
    if state == "evicted":
        engine.resize_kv_pool(0)
        engine.resize_kv_pool(20)
    if state == "aborted":
        engine.abort(request_id)
    point = engine.branch_point(request_id)
    assert len(point.token_ids) == len(PROMPT) + {"waiting": 0, "finished": 30, "evicted": 30}.get(state, 9)
    branch = engine.add_request(point.token_ids, SAMPLED)
    run(engine)
    alone = models.engine(**NO_CACHE, spec=full_attention())
    assert bits(engine.take(branch)) == bits(answer(alone, [point.token_ids], SAMPLED)[0])
    if state != "aborted":
        assert bits(engine.take(request_id)) == bits(answer(alone, [PROMPT], SAMPLED)[0])


def test_a_branch_s_default_leaves_the_end_token_out_and_keeps_the_salt(models):
    engine = models.engine(end_token_ids=range(256))
    request_id = engine.add_request(PROMPT, SamplingParams(temperature=0.0), cache_salt="a", priority=3)
    run(engine)
    point = engine.branch_point(request_id)
    assert point.token_ids == PROMPT
    assert (point.cache_salt, point.priority) == ("a", 3)
    assert len(engine.branch_point(request_id, at_token=38).token_ids) == 38


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"request_id": "nobody"}, "request_id"),
        ({"choice": 1}, "choice"),
        ({"choice": -1}, "choice"),
        ({"at_token": 0}, "at_token"),
        ({"at_token": 68}, "at_token"),
        ({"at_token": "3"}, "at_token"),
    ],
)
def test_what_is_no_place_in_an_answer_is_refused(llm, fields, name):
    (whole,) = llm.generate({"prompt_token_ids": PROMPT}, SAMPLED)
    with pytest.raises(RequestError) as caught:
        llm.fork(**({"request_id": whole.request_id} | fields))
    assert caught.value.field == name


def test_only_the_last_requests_can_be_branched(models, monkeypatch):
    monkeypatch.setattr(branching, "NUM_KEPT", 3)
    engine = models.engine()
    ids = [engine.add_request([index], SamplingParams(max_tokens=1)) for index in range(5)]
    run(engine)
    for request_id in ids[:2]:
        with pytest.raises(RequestError, match="left lately"):
            engine.branch_point(request_id)
    assert [engine.branch_point(request_id, at_token=1).token_ids for request_id in ids[2:]] == [[2], [3], [4]]
    monkeypatch.setattr(branching, "MAX_KEPT_TOKENS", 20)
    long = engine.add_request(PROMPT, SamplingParams(max_tokens=1))
    run(engine)
    for request_id in (*ids, long):
        with pytest.raises(RequestError, match="left lately"):
            engine.branch_point(request_id)


# ---- the best of several


def test_the_best_of_several_are_those_with_the_most_likely_tokens(models):
    engine = models.engine()
    fields = {"max_tokens": 12, "temperature": 1.5, "seed": 3, "ignore_eos": True}
    (every,) = answer(engine, [PROMPT], SamplingParams(n=6, logprobs=1, **fields))
    (best,) = answer(engine, [PROMPT], SamplingParams(n=2, best_of=6, **fields))
    sums = [sum(entry[token].logprob for token, entry in zip(c.token_ids, c.logprobs, strict=True)) for c in every.outputs]
    order = sorted(range(6), key=lambda index: -sums[index])
    assert [choice.token_ids for choice in best.outputs] == [every.outputs[index].token_ids for index in order[:2]]
    assert [choice.index for choice in best.outputs] == [0, 1]
    assert [choice.cumulative_logprob for choice in best.outputs] == pytest.approx([sums[index] for index in order[:2]])
    assert [choice.logprobs for choice in best.outputs] == [None, None]
    assert best.num_generated_tokens == 72


def test_the_best_are_told_once_at_the_end(models):
    engine = models.engine()
    engine.add_request(PROMPT, SamplingParams(n=1, best_of=3, max_tokens=5, temperature=1.0, seed=1, ignore_eos=True))
    deltas = []
    while engine.has_unfinished_requests:
        assert not deltas
        deltas += engine.step()
    (delta,) = deltas
    assert (delta.index, len(delta.token_ids), delta.finish_reason) == (0, 5, "length")


@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_an_aborted_best_of_frees_all_its_blocks(models, num_steps):
    engine = models.engine()
    request_id = engine.add_request(PROMPT, SamplingParams(n=2, best_of=5, max_tokens=9, temperature=1.0, ignore_eos=True))
    for _ in range(num_steps):
        engine.step()
    assert len(engine.abort(request_id).outputs) == (2 if num_steps else 1)
    engine.check_invariants()
    assert engine.stats().memory.num_used_blocks == 0


def test_best_of_is_at_least_n():
    with pytest.raises(RequestError, match="at least n=3"):
        SamplingParams(n=3, best_of=2)
