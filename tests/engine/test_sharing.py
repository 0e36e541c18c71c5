"""Equal beginnings are computed once, to the token; and every KV format and window goes through sharing, forks and beams."""

from dataclasses import replace

import pytest

from engine.tiny_engine import SPEC, answer, bits, full_attention, run
from octavo import BeamSearchParams, SamplingParams
from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import group_layers, layers_per_block

LONG = replace(SPEC, max_position=1200)
GREEDY = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
PROMPT = [1 + (token * 7) % 250 for token in range(1000)]
WIDE = {"spec": full_attention(LONG), "kv_memory": "400 blocks", "max_num_seqs": 64, "max_num_batched_tokens": 256}


def test_equal_prompts_that_come_together_are_computed_once(models):
    engine = models.engine(**WIDE)
    outputs = answer(engine, [PROMPT] * 64, GREEDY)
    assert engine.stats().num_computed_tokens == 1000 + 63 + 64  # the prompt, each follower's last token, each second token
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert sum(output.num_prefix_hit_tokens == 999 for output in outputs) == 63


@pytest.mark.parametrize("num_steps_ahead", [0, 1, 3])
def test_a_follower_waits_no_longer_than_it_would_compute(models, num_steps_ahead):
    engine = models.engine(**WIDE)
    engine.add_request(PROMPT, GREEDY)
    for _ in range(num_steps_ahead):
        engine.step()
    follower = engine.add_request([*PROMPT, 1, 2, 3], GREEDY)
    num_steps = 0
    while not engine.peek(follower).outputs[0].token_ids:
        engine.step()
        num_steps += 1
    assert num_steps <= 1 + -(-len(PROMPT) // 256)  # its own prompt in steps of 256 tokens
    run(engine)


@pytest.mark.parametrize("spec", [LONG, full_attention(LONG)], ids=["window", "full"])
def test_each_turn_of_a_chat_computes_only_what_is_new(models, spec):
    engine = models.engine(spec=spec, kv_memory="400 blocks")
    conversation = list(PROMPT[:21])
    params = SamplingParams(max_tokens=11, temperature=0.0, ignore_eos=True)
    known = 0
    for turn in range(20):
        before = engine.stats().num_computed_tokens
        (output,) = answer(engine, [conversation], params)
        assert engine.stats().num_computed_tokens - before == len(conversation) - known + 10
        conversation += output.outputs[0].token_ids
        known = len(conversation) - 1  # an answer's last token is drawn, not computed
        conversation += [turn + 1, 200, 201 + turn]


# ---- every KV format


@pytest.mark.parametrize("kv_dtype", ["int8", "bf16"])
def test_every_kv_format_is_shared_forked_and_searched_bit_by_bit(models, kv_dtype):
    settings = {"kv_dtype": kv_dtype, "kv_memory": "100 blocks"}
    prompt = PROMPT[:70]
    sampled = SamplingParams(n=3, max_tokens=20, temperature=1.0, seed=4, logprobs=1, ignore_eos=True)
    beams = BeamSearchParams(num_beams=3, max_tokens=15)
    alone = models.engine(**settings, enable_prefix_caching=False)
    expected = bits(answer(alone, [prompt], sampled)[0])
    best = _search(alone, prompt, beams)
    branch = bits(answer(alone, [[*prompt, *expected[1][0][:9]]], sampled)[0])
    for pool in ("100 blocks", "21 blocks"):
        engine = models.engine(**settings | {"kv_memory": pool})
        for _ in range(2):  # cold, then from the cache
            (output,) = answer(engine, [prompt], sampled)
            assert bits(output) == expected
            assert _search(engine, prompt, beams) == best
        point = engine.branch_point(output.request_id, choice=1, at_token=79)
        assert bits(answer(engine, [point.token_ids], sampled)[0]) == branch


def _search(engine, prompt, params):
    request_id = engine.add_beam_search(prompt, params)
    run(engine)
    return [(choice.token_ids, choice.beam_score) for choice in engine.take(request_id).outputs]


# ---- windows


GEMMA_3 = ([512] * 5 + [None]) * 3  # the windows of its 270M model


@pytest.mark.parametrize("step_tokens", [256, 512])
def test_gemma_3_holds_a_quarter_of_what_full_attention_would(step_tokens):
    windows, num_tokens = GEMMA_3, 8192
    assert (windows.count(512), windows.count(None)) == (15, 3)
    groups = group_layers(windows)
    memory = KVManager(num_blocks=1000, block_size=16, groups=groups)
    tokens = list(range(num_tokens))
    cache = memory.open(tokens, (), None)
    for end in range(step_tokens, num_tokens + 1, step_tokens):
        assert memory.allocate(cache, end)
        memory.commit(cache, tokens, end)
    layer_slots = memory.stats().num_used_blocks * 16 * layers_per_block(groups)
    assert layer_slots <= len(windows) * num_tokens / 4
    held = [len(table.block_ids) - table.first_held for table in cache.tables]
    assert held == [512 if group.window is None else 32 for group in groups]
    assert memory.stats().num_used_blocks == sum(held)
    memory.check_invariants()


def test_a_hit_in_windowed_groups_needs_only_the_window_s_blocks():
    groups = group_layers(GEMMA_3)
    memory = KVManager(num_blocks=900, block_size=16, groups=groups)
    tokens = list(range(2048))
    cache = memory.open(tokens, (), None)
    for end in range(512, 2049, 512):
        assert memory.allocate(cache, end)
        memory.commit(cache, tokens, end)
    memory.free(cache, tokens)
    num_cached = memory.stats().num_cached_blocks
    needed = 128 + 5 * 32  # all of the full-attention group, the last 512 tokens of the windowed ones
    assert num_cached > needed
    assert memory.drop_cached(num_cached - needed) == num_cached - needed  # what left the windows first goes first
    again = [*tokens, 1]
    assert memory.match(again).num_tokens == 2048
    memory.free(memory.open(again, (), memory.match(again)), again)
    memory.check_invariants()
