"""`retain`, pins and quotas in a whole engine."""

import pytest

import octavo.llm
from engine.tiny_engine import answer, full_attention, run
from octavo import LLM, SamplingParams
from octavo.engine.retain import read_retentions
from octavo.errors import CapacityError, RequestError
from octavo.memory.claims import Retention

ONE = SamplingParams(max_tokens=1, temperature=0.0)


def prompt_of(index, num_tokens=33):
    return [index + 1, *((index * 7 + token) % 250 + 1 for token in range(num_tokens - 1))]


def hits(engine, index, **options):
    return answer(engine, [prompt_of(index)], ONE, **options)[0].num_prefix_hit_tokens


@pytest.fixture
def engine(models):
    return models.engine(spec=full_attention(), kv_memory="12 blocks")


@pytest.fixture
def llm(engine, monkeypatch):
    monkeypatch.setattr(octavo.llm, "load_engine", lambda config: engine)
    return LLM("tiny")


def test_a_retained_prompt_outlives_others_until_its_time_is_over(engine, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("octavo.engine.engine.time.monotonic", lambda: now[0])
    answer(engine, [prompt_of(0)], ONE, retain={"priority": 80, "ttl_s": 60})
    answer(engine, [prompt_of(index) for index in range(1, 9)], ONE)
    assert hits(engine, 0) == 32
    answer(engine, [prompt_of(0)], ONE, retain=Retention(80, ttl_s=60))
    now[0] += 61
    answer(engine, [prompt_of(index) for index in range(1, 9)], ONE)
    assert hits(engine, 0) == 0


def test_what_is_worth_less_goes_first(engine):
    answer(engine, [prompt_of(0)], ONE)
    answer(engine, [prompt_of(1)], ONE, retain=[{"priority": 0}])
    answer(engine, [prompt_of(index) for index in (2, 3, 4)], ONE)
    assert (hits(engine, 0), hits(engine, 1)) == (32, 0)


def test_choices_and_beams_ask_for_their_request(models):
    from octavo import BeamSearchParams

    engine = models.engine(spec=full_attention(), kv_memory="20 blocks")
    engine.add_request(prompt_of(0), SamplingParams(n=2, max_tokens=3, seed=1, ignore_eos=True), retain={"priority": 90})
    engine.add_beam_search(prompt_of(1), BeamSearchParams(num_beams=2, max_tokens=3), retain={"priority": 90})
    run(engine)
    answer(engine, [prompt_of(index) for index in range(2, 12)], ONE)
    assert (hits(engine, 0), hits(engine, 1)) == (32, 32)


def test_an_embedded_prompt_asks_for_its_blocks_too(llm):
    for index, retain in enumerate([{"priority": 0}, {"priority": 90}]):
        llm.embed({"prompt_token_ids": prompt_of(index), "retain": retain})
    for index in range(2, 10):
        llm.generate({"prompt_token_ids": prompt_of(index)}, ONE)
    assert (hits(llm.engine, 0), hits(llm.engine, 1)) == (0, 32)


@pytest.mark.parametrize(
    "retain",
    [
        3,
        "high",
        [3],
        {},
        {"priority": None},
        {"priority": 101},
        {"priority": -1},
        {"priority": 1.5},
        {"priority": True},
        {"priority": 1, "ttl_s": 0},
        {"priority": 1, "ttl_s": float("inf")},
        {"priority": 1, "ttl": 3},
        {"priority": 1, "start": -1},
        {"priority": 1, "start": 4, "end": 4},
        [{"priority": 1}] * 17,
    ],
    ids=str,
)
def test_a_wrong_retain_is_refused_and_leaves_nothing(engine, retain):
    with pytest.raises(RequestError) as caught:
        engine.add_request([1], ONE, retain=retain)
    assert caught.value.field == "retain"
    assert not engine.has_unfinished_requests


def test_pins_never_keep_a_request_from_its_blocks(llm):
    pinned = llm.pin_prefix({"prompt_token_ids": prompt_of(0)})
    assert (pinned.num_tokens, pinned.num_cached_tokens, pinned.seconds_left) == (33, 33, None)
    for index in range(1, 6):
        llm.generate({"prompt_token_ids": prompt_of(index)}, ONE)
    assert hits(llm.engine, 0) == 32
    largest = SamplingParams(max_tokens=12 * 16 - 1, temperature=0.0, ignore_eos=True)
    (output,) = llm.generate({"prompt_token_ids": [9]}, largest)  # needs every block of the pool
    assert len(output.outputs[0].token_ids) == 12 * 16 - 1
    (left,) = llm.engine.prefixes.list(())
    assert (left.id, left.num_cached_tokens) == (pinned.id, 0)
    assert llm.pin_prefix({"prompt_token_ids": prompt_of(0)}).num_cached_tokens == 33  # and is renewed


def test_a_prompts_own_salt_counts_for_its_pin(llm):
    prompt = {"prompt_token_ids": prompt_of(0), "cache_salt": "a"}
    pinned = llm.pin_prefix(prompt)
    assert llm.release_prefix(pinned.id, cache_salt="a")
    assert (hits(llm.engine, 0), hits(llm.engine, 0, cache_salt="a")) == (0, 32)
    assert llm.pin_prefix(prompt, cache_salt="a").id == pinned.id
    with pytest.raises(RequestError, match="cache_salt='a' is not 'b'"):
        llm.pin_prefix(prompt, cache_salt="b")


def test_a_prompt_without_a_salt_is_pinned_for_the_calls(llm):
    for index, own in enumerate([{}, {"cache_salt": None}]):
        pinned = llm.pin_prefix({"prompt_token_ids": prompt_of(index)} | own, cache_salt="a")
        assert (hits(llm.engine, index), hits(llm.engine, index, cache_salt="a")) == (0, 32)
        assert llm.release_prefix(pinned.id, cache_salt="a")


def test_a_field_of_retain_that_is_none_counts_as_not_given():
    assert read_retentions({"priority": 7, "ttl_s": None, "start": None, "end": None}) == read_retentions({"priority": 7})


def test_with_everything_pinned_the_largest_request_runs(models):
    engine = models.engine(spec=full_attention(), kv_memory="12 blocks", pin_percent=100)
    for index in range(4):
        answer(engine, [prompt_of(index)], ONE, retain={"priority": 100})
        engine.prefixes.pin(prompt_of(index), ())
    assert engine.prefixes.share() == (12, 12)
    largest = SamplingParams(max_tokens=12 * 16 - 1, temperature=0.0, ignore_eos=True)
    output = answer(engine, [[9]], largest)[0]
    assert len(output.outputs[0].token_ids) == 12 * 16 - 1
    assert [pin.num_cached_tokens for pin in engine.prefixes.list(())] == [0] * 4


def test_many_requests_of_many_tenants_run_beside_pins_and_shares(models):
    engine = models.engine(spec=full_attention(), kv_memory="14 blocks", pin_percent=100, salt_percent=10)
    alone = models.engine(spec=full_attention(), enable_prefix_caching=False)
    for index in range(3):
        answer(engine, [prompt_of(index)], ONE)
        engine.prefixes.pin(prompt_of(index), ())
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    retain = {"priority": 100}
    ids = [engine.add_request(prompt_of(index % 5), params, cache_salt=f"tenant {index}", retain=retain) for index in range(20)]
    run(engine)
    expected = [answer(alone, [prompt_of(index)], params)[0].outputs[0].token_ids for index in range(5)]
    assert [engine.take(request_id).outputs[0].token_ids for request_id in ids] == expected * 4


def test_pins_outlast_a_shrunk_pool_as_far_as_it_holds_them(models, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("octavo.engine.engine.time.monotonic", lambda: now[0])
    engine = models.engine(spec=full_attention(), kv_memory="12 blocks", pin_percent=50)
    answer(engine, [prompt_of(0)], ONE)
    engine.prefixes.pin(prompt_of(0), (), ttl_s=60)
    answer(engine, [prompt_of(index) for index in range(1, 4)], ONE)
    assert engine.resize_kv_pool(4) == 4
    engine.check_invariants()
    assert [pin.num_cached_tokens for pin in engine.prefixes.list(())] == [33], "what is pinned goes last"
    with pytest.raises(CapacityError, match="2"):
        engine.prefixes.pin(prompt_of(0), ())  # it is more than half of the pool that is left
    engine.resize_kv_pool(1)
    engine.check_invariants()
    assert engine.prefixes.list(())[0].num_cached_tokens < 33
    engine.resize_kv_pool(12)
    assert answer(engine, [prompt_of(0)], ONE)[0].outputs[0].token_ids
    now[0] += 61
    answer(engine, [[1, 2]], ONE)
    assert engine.prefixes.list(()) == [] and engine.prefixes.share()[0] == 0


def test_pins_have_a_share_and_belong_to_a_salt(llm):
    pinned = llm.pin_prefix({"prompt_token_ids": prompt_of(0)}, cache_salt="a", ttl_s=50)
    assert pinned.seconds_left == pytest.approx(50, abs=5)
    with pytest.raises(CapacityError, match=r"25 % of the pool's 12 blocks may be pinned, 3"):
        llm.pin_prefix({"prompt_token_ids": prompt_of(1)})
    assert llm.engine.prefixes.list(()) == []
    assert not llm.release_prefix(pinned.id)
    assert llm.release_prefix(pinned.id, cache_salt="a")
    assert llm.pin_prefix({"prompt_token_ids": prompt_of(1)})
    with pytest.raises(RequestError, match="ttl_s=-1"):
        llm.pin_prefix("a", ttl_s=-1)


def test_a_share_of_the_cache_keeps_a_salt_from_taking_all(models):
    engine = models.engine(spec=full_attention(), kv_memory="30 blocks", salt_percent=40)
    engine.set_tenant_quota("small", 20)
    for index in range(2):
        answer(engine, [prompt_of(index)], ONE, cache_salt="quiet")
    for index in range(30):
        answer(engine, [prompt_of(index)], ONE, cache_salt=("loud", "small\0x", "small\0y")[index % 3])
    assert [hits(engine, index, cache_salt="quiet") for index in range(2)] == [32, 32]
    assert engine._scheduler.kv._pool.num_cached_of((("tenant", "small"),)) <= 6
