"""Promises P2 and P3 on the whole engine: random loads with aborts, tiny pools, windows; the books balance after every step."""

import random

import pytest

from engine.tiny_engine import SPEC, WINDOW, answer, full_attention, run
from octavo.errors import CapacityError, RequestError
from octavo.memory.layer_groups import group_layers
from octavo.sampling_params import SamplingParams

NUM_RANDOM_STEPS = 10_000
STEPS_PER_ENGINE = 1_000


def random_request(source, engine):
    """Adds a random request; returns its id, or None where the engine refuses it."""
    head = list(range(1, 41))[: source.choice([0, 0, 16, 33, 40])]
    prompt = head + [source.randrange(1, 256) for _ in range(source.randint(1, 60))]
    params = SamplingParams(
        n=source.choice([1, 1, 1, 2, 3]),
        max_tokens=source.randint(1, 24),
        temperature=source.choice([0.0, 1.0]),
        stop=source.choice([(), (), "ab"]),
        frequency_penalty=source.choice([0.0, 0.0, 0.5]),
    )
    try:
        return engine.add_request(prompt, params, cache_salt=source.choice([None, None, "a"]), priority=source.choice([0, 0, 1]))
    except CapacityError:
        return None


def assert_idle(engine):
    """Nothing in flight holds anything."""
    memory = engine.stats().memory
    assert memory.num_used_blocks == 0
    assert memory.num_free_blocks + memory.num_cached_blocks == memory.num_blocks
    assert not engine._in_flight.choices and not engine._in_flight.samplings and not engine._book.requests
    assert len(set(engine._scheduler._running_set.free_rows)) == engine._scheduler.limits.max_num_seqs


@pytest.mark.parametrize("seed", range(NUM_RANDOM_STEPS // STEPS_PER_ENGINE))
def test_the_books_balance_after_every_random_step(models, seed):
    source = random.Random(seed)
    spec = source.choice([SPEC, full_attention()])
    engine = models.engine(
        spec=spec,
        kv_memory=f"{source.choice([18, 24, 60])} blocks",
        max_num_seqs=source.choice([3, 8]),
        max_num_batched_tokens=source.choice([8, 16, 40]),
        enable_prefix_caching=source.random() < 0.8,
    )
    in_flight = []
    for _ in range(STEPS_PER_ENGINE):
        if source.random() < 0.15 and len(in_flight) < 12:
            in_flight.append(random_request(source, engine))
        if source.random() < 0.02 and in_flight:
            engine.abort(source.choice(in_flight))
        deltas = engine.step()
        engine.check_invariants()
        if engine.has_unfinished_requests and engine._scheduler.has_work:
            assert deltas or engine._scheduler.running, "work waits and nothing runs"
        in_flight = [request_id for request_id in in_flight if request_id in engine._book.requests]
    run(engine)
    assert_idle(engine)


@pytest.mark.parametrize("num_blocks", range(4, 13))
def test_tiny_pools_serve_what_fits_and_refuse_the_rest(models, num_blocks):
    spec = full_attention()
    engine = models.engine(spec=spec, kv_memory=f"{num_blocks} blocks", max_num_batched_tokens=16)
    capacity = 16 * num_blocks
    accepted = []
    for length in (capacity + 1, capacity - 4, capacity - 5, capacity // 2, 3, capacity - 4, 1):
        try:
            accepted.append(engine.add_request(list(range(1, length + 1)), SamplingParams(max_tokens=4, ignore_eos=True)))
        except (CapacityError, RequestError) as refusal:
            assert length > capacity - 4, refusal
    assert len(accepted) == 6
    num_steps = run(engine, max_steps=200)
    assert num_steps < 200
    assert all(len(engine.take(request_id).outputs[0].token_ids) == 4 for request_id in accepted)
    assert_idle(engine)


def test_a_refused_request_leaves_nothing_and_blocks_nobody(models):
    engine = models.engine(spec=full_attention(), kv_memory="8 blocks", max_num_batched_tokens=32)
    with pytest.raises(CapacityError, match=r"124 tokens and up to 9 more need 9 KV blocks \(133 tokens\)") as caught:
        engine.add_request(list(range(1, 125)), SamplingParams(max_tokens=9))
    assert "kv_memory" in caught.value.hint
    small = answer(engine, [[1, 2, 3]] * 3, SamplingParams(max_tokens=3, ignore_eos=True))
    assert [len(output.outputs[0].token_ids) for output in small] == [3, 3, 3]


def test_no_max_tokens_means_as_many_as_fit(models):
    engine = models.engine(spec=full_attention(), kv_memory="8 blocks")
    output = answer(engine, [[1, 2, 3]], SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True))[0]
    assert len(output.outputs[0].token_ids) == 8 * 16 - 3
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("budget", [16, 24, 64])
def test_a_window_never_holds_more_than_window_and_chunk(models, budget):
    engine = models.engine(kv_memory="80 blocks", max_num_batched_tokens=budget)
    windowed = [index for index, group in enumerate(group_layers(SPEC.windows)) if group.window is not None]
    engine.add_request([1 + index % 250 for index in range(180)], SamplingParams(max_tokens=60, ignore_eos=True))
    while engine.has_unfinished_requests:
        engine.step()
        for sequence in engine._scheduler.running:
            for index in windowed:
                table = sequence.cache.tables[index]
                num_slots = 16 * (len(table.block_ids) - table.first_held)
                assert num_slots <= WINDOW + budget + 16 + 15
    assert_idle(engine)


def test_aborting_in_every_state_frees_at_once(models):
    engine = models.engine(spec=full_attention(), kv_memory="12 blocks", max_num_batched_tokens=16)
    params = SamplingParams(max_tokens=40, n=2, temperature=1.0, ignore_eos=True)
    decoding = engine.add_request([1, 2, 3], params)
    engine.step()
    prefilling = engine.add_request(list(range(1, 100)), SamplingParams(max_tokens=4))
    engine.step()
    waiting = engine.add_request(list(range(1, 150)), SamplingParams(max_tokens=4))
    for request_id in (prefilling, waiting, decoding):
        output = engine.abort(request_id)
        assert {choice.finish_reason for choice in output.outputs} == {"abort"}
        engine.check_invariants()
    assert engine.abort(decoding) is None
    assert_idle(engine)
    assert engine.add_request([1], SamplingParams(), request_id=decoding) == decoding


def test_a_request_id_in_flight_is_refused(models):
    engine = models.engine()
    engine.add_request([1], SamplingParams(), request_id="r")
    with pytest.raises(RequestError, match="'r' is in use"):
        engine.add_request([2], SamplingParams(), request_id="r")
    assert engine.num_unfinished_requests == 1


def test_counters_close(models):
    engine = models.engine(spec=full_attention(), kv_memory="9 blocks", max_num_batched_tokens=32)
    params = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.0)
    outputs = answer(engine, [[index, *range(1, 40)] for index in range(1, 7)], params)
    stats = engine.stats()
    assert stats.num_generated_tokens == sum(len(output.outputs[0].token_ids) for output in outputs) == 180
    assert stats.num_prompt_tokens == 240
    assert stats.finished == {"length": 6}
    assert stats.num_preemptions == sum(output.metrics.num_preemptions for output in outputs) > 0
    recomputed = sum(output.metrics.num_recomputed_tokens for output in outputs)
    hits = sum(output.num_prefix_hit_tokens for output in outputs)
    assert stats.num_computed_tokens == 240 + 180 - 6 - hits + recomputed


def test_a_shrunk_pool_gives_its_pages_back_and_grows_again(models):
    engine = models.engine(spec=full_attention(), kv_memory="64 blocks")
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    prompts = [list(range(start, start + 90)) for start in (1, 50, 100, 150)]
    expected = [output.outputs[0].token_ids for output in answer(engine, prompts, params)]
    storage = engine._runner._storage.blocks
    assert storage.any()
    assert engine.resize_kv_pool(0) == 0
    assert not storage.any()
    assert engine.resize_kv_pool(1000) == 64
    assert [output.outputs[0].token_ids for output in answer(engine, prompts, params)] == expected


def test_a_pool_shrinks_around_running_sequences(models):
    engine = models.engine(spec=full_attention(), kv_memory="64 blocks")
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    expected = answer(models.engine(spec=full_attention()), [list(range(1, 60))], params)[0].outputs[0].token_ids
    request_id = engine.add_request(list(range(1, 60)), params)
    engine.step()
    assert engine.stats().memory.num_used_blocks == 4
    assert engine.resize_kv_pool(1) == 6  # it will have 89 tokens
    engine.check_invariants()
    engine.resize_kv_pool(8)
    run(engine)
    assert engine.take(request_id).outputs[0].token_ids == expected
