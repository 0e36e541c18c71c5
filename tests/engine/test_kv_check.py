"""`octavo.runner.kv_check`: it changes nothing, and it finds memory that was changed."""

import random

import numpy as np
import pytest

from engine.tiny_engine import SPEC, answer, bits, full_attention, run
from octavo.errors import IntegrityError
from octavo.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, logprobs=2)
STEM = [1 + (7 * place) % 250 for place in range(40)]
PROMPTS = [STEM[: 8 * index] + [index] * (3 + 5 * index) for index in range(1, 7)]


def make(models, kv_check, **settings):
    small = {"spec": full_attention(), "kv_memory": "24 blocks", "max_num_batched_tokens": 24}
    return models.engine(**small | settings, kv_check=kv_check)


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("spec", [SPEC, full_attention()], ids=["windows", "full"])
def test_answers_are_the_same_bits(models, kv_dtype, spec):
    """With preemptions, copies of parts, evictions and poison in every slot that nobody has written."""
    num_blocks = "24 blocks" if spec is not SPEC else "60 blocks"
    params = [GREEDY, SamplingParams(max_tokens=40, n=3, temperature=1.0, seed=5, ignore_eos=True, logprobs=2)] * 3
    outputs = {}
    for kv_check in ("off", "sample", "all"):
        engine = make(models, kv_check, kv_dtype=kv_dtype, spec=spec, kv_memory=num_blocks)
        outputs[kv_check] = [bits(output) for _ in range(2) for output in answer(engine, PROMPTS, params)]
        if kv_check == "all":
            assert engine._runner.kv_check.num_compared > 500
        assert engine.stats().memory.num_evictions > 0 and engine.stats().memory.num_copies > 0
    assert outputs["off"] == outputs["sample"] == outputs["all"]


def test_a_changed_byte_of_a_held_block_is_found_before_it_is_read(models):
    engine = make(models, "all")
    engine.add_request(STEM, GREEDY)
    for _ in range(4):
        engine.step()
    block_id = engine._scheduler.running[0].cache.tables[0].block_ids[1]
    engine._runner.kv_blocks[block_id, 100] ^= 4
    with pytest.raises(IntegrityError, match=f"KV block {block_id} .*block 1 of sequence 1.* has changed"):
        engine.step()


@pytest.mark.parametrize("kv_check", ["sample", "all"])
def test_a_changed_byte_of_a_cached_block_is_found_on_reuse(models, kv_check):
    engine = make(models, kv_check, kv_memory="60 blocks")
    answer(engine, [STEM], GREEDY)
    cached = [block.block_id for block in engine.block_map().blocks if block.num_tokens == 16]
    assert len(cached) >= 3
    engine._runner.kv_blocks[cached, 7] += 1
    engine.add_request(STEM, GREEDY)
    with pytest.raises(IntegrityError, match="has changed"):
        run(engine)


def test_sample_finds_a_changed_block_of_a_running_sequence_in_time(models):
    engine = make(models, "sample", kv_memory="60 blocks")
    engine.add_request(STEM, SamplingParams(max_tokens=150, ignore_eos=True))
    for _ in range(6):
        engine.step()
    engine._runner.kv_blocks[engine._scheduler.running[0].cache.tables[0].block_ids[0], 0] ^= 1
    with pytest.raises(IntegrityError):
        run(engine)


def test_a_write_to_a_free_block_is_found_when_it_is_handed_out(models):
    engine = make(models, "all", enable_prefix_caching=False)
    answer(engine, [STEM], GREEDY)
    first = engine.add_request([9], GREEDY)
    engine.step()
    engine.abort(first)
    blocks = engine._runner.kv_blocks
    poisoned = np.flatnonzero((blocks == 0xFF).all(axis=1))
    assert len(poisoned) >= 4
    blocks[poisoned, 50] = 0
    engine.add_request([8] * 60, GREEDY)
    with pytest.raises(IntegrityError, match="was written to while it was free"):
        run(engine)


def test_a_step_that_writes_to_a_full_block_is_stopped(models):
    engine = make(models, "all")
    engine.add_request(STEM, GREEDY)
    engine.add_request([200] * 20, GREEDY)
    for _ in range(4):
        engine.step()
    first, second = engine._scheduler.running
    second.cache.tables[0].replace(second.num_computed_tokens // 16, first.cache.tables[0].block_ids[0])
    with pytest.raises(IntegrityError, match="full and in use"):
        engine.step()


def test_pages_that_went_back_are_not_taken_for_a_fault(models):
    engine = make(models, "all")
    expected = [bits(output) for output in answer(engine, PROMPTS, GREEDY)]
    source = random.Random(3)
    for _ in range(4):
        engine.resize_kv_pool(source.choice([0, 10]))
        engine.guard.release_idle(0)
        engine.resize_kv_pool(24)
        assert [bits(output) for output in answer(engine, PROMPTS, GREEDY)] == expected
