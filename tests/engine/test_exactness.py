"""Promise P1: a sequence's tokens and log-probabilities are bitwise the same whatever happens around it."""

import random

import pytest

from engine.tiny_engine import answer, bits, full_attention, run
from octavo.kernels.reference import ReferenceOperations
from octavo.sampling_params import SamplingParams

NUM_PROMPTS = 10


def workload(seed):
    """Returns prompts (some sharing a head, some repeated) and their parameters."""
    source = random.Random(seed)
    head = [source.randrange(1, 256) for _ in range(40)]
    prompts, params = [], []
    for index in range(NUM_PROMPTS):
        own = [source.randrange(1, 256) for _ in range(source.randint(1, 60))]
        shared = head[: source.choice([0, 0, 17, 32, 40])]
        prompts.append(prompts[0] if index == NUM_PROMPTS - 1 else shared + own)
        sampled = {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "seed": index} if index % 2 else {"temperature": 0.0}
        penalised = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "logit_bias": {7: 1.0}} if index % 3 == 0 else {}
        params.append(SamplingParams(max_tokens=source.randint(1, 30), logprobs=2, ignore_eos=True, **sampled, **penalised))
    return prompts, params


def answers_alone(engine, prompts, params):
    return [bits(answer(engine, [prompt], its)[0]) for prompt, its in zip(prompts, params, strict=True)]


@pytest.fixture(params=range(3))
def case(request, models):
    """Prompts, parameters, and what each gives alone, in one chunk, without a prefix cache."""
    prompts, params = workload(request.param)
    engine = models.engine(enable_prefix_caching=False, max_num_batched_tokens=256)
    return prompts, params, answers_alone(engine, prompts, params)


VARIANTS = {
    "in a batch": {},
    "prefix cache off": {"enable_prefix_caching": False},
    "blocks of 32": {"block_size": 32},
    "blocks of 64": {"block_size": 64},
    "blocks of 128": {"block_size": 128, "kv_memory": "40 blocks"},
    "chunks of 16": {"max_num_batched_tokens": 16},
    "chunks of 17": {"max_num_batched_tokens": 17},
    "chunks of 23": {"max_num_batched_tokens": 23},
    "two threads": {"num_threads": 2},
    "three at once": {"max_num_seqs": 3},
    "a pool that forces preemption": {"kv_memory": "24 blocks"},
    "a tiny pool, cache off": {"kv_memory": "24 blocks", "enable_prefix_caching": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_gives_what_each_gives_alone(models, case, variant):
    prompts, params, alone = case
    engine = models.engine(**VARIANTS[variant])
    assert [bits(output) for output in answer(engine, prompts, params)] == alone
    if "pool" in variant:
        assert engine.stats().num_preemptions > 0


def test_a_warm_prefix_cache_changes_nothing(models, case):
    prompts, params, alone = case
    engine = models.engine(kv_memory="200 blocks")
    answer(engine, prompts, params)
    warm = answer(engine, prompts, params)
    assert [bits(output) for output in warm] == alone
    assert all(output.num_prefix_hit_tokens >= len(output.prompt_token_ids) - 1 for output in warm)


def test_placement_of_blocks_does_not_matter(models, case):
    prompts, params, alone = case
    engine = models.engine(kv_memory="200 blocks")
    source = random.Random(5)
    for _ in range(30):  # leaves the free and cached blocks in a disorder
        engine.add_request([source.randrange(1, 256) for _ in range(source.randint(1, 90))], SamplingParams(max_tokens=9))
        if source.random() < 0.5:
            engine.step()
    run(engine)
    assert [bits(output) for output in answer(engine, prompts, params)] == alone


@pytest.mark.parametrize("num_preemptions", [1, 2, 3])
def test_preempted_at_any_moment(models, case, num_preemptions):
    prompts, params, alone = case
    engine = models.engine()
    source = random.Random(num_preemptions)
    ids = [engine.add_request(prompt, its) for prompt, its in zip(prompts, params, strict=True)]
    scheduler, done = engine._scheduler, dict.fromkeys(range(1, NUM_PROMPTS + 1), 0)
    while engine.has_unfinished_requests:
        engine.step()
        for sequence in list(scheduler.running):
            if done[sequence.sequence_id] < num_preemptions and source.random() < 0.3:
                scheduler._preempt(sequence)
                done[sequence.sequence_id] += 1
        engine.check_invariants()
    assert [bits(engine.take(request_id)) for request_id in ids] == alone
    assert sum(done.values()) > NUM_PROMPTS // 2


def test_the_choices_of_n_equal_the_choices_of_more(models):
    prompt = list(range(1, 38))
    params = {"temperature": 1.0, "seed": 7, "max_tokens": 12, "logprobs": 1, "ignore_eos": True}
    four = answer(models.engine(), [prompt], SamplingParams(n=4, **params))[0]
    two = answer(models.engine(kv_memory="12 blocks"), [prompt], SamplingParams(n=2, **params))[0]
    one = answer(models.engine(), [prompt], SamplingParams(**params))[0]
    assert len({tuple(choice.token_ids) for choice in four.outputs}) == 4
    assert bits(four)[:2] == bits(two)
    assert bits(four)[:1] == bits(one)


def test_choices_share_their_prompt_and_survive_preemption(models):
    prompt = list(range(1, 70))
    params = SamplingParams(n=6, temperature=1.0, seed=3, max_tokens=40, logprobs=1, ignore_eos=True)
    spec = full_attention()
    wide = models.engine(spec=spec, kv_memory="80 blocks")
    narrow = models.engine(spec=spec, kv_memory="18 blocks")
    assert bits(answer(wide, [prompt], params)[0]) == bits(answer(narrow, [prompt], params)[0])
    assert narrow.stats().num_preemptions > 0
    assert wide.stats().memory.num_copies >= 5


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_every_format_is_exact_in_itself(models, weights, kv_dtype):
    prompts, params = workload(11)
    formats = {"weights": weights, "kv_dtype": kv_dtype}
    alone = answers_alone(models.engine(enable_prefix_caching=False, **formats), prompts, params)
    chunked = models.engine(max_num_batched_tokens=19, kv_memory="24 blocks", block_size=32, num_threads=2, **formats)
    assert [bits(output) for output in answer(chunked, prompts, params)] == alone


def test_prompt_logprobs_do_not_depend_on_chunks_or_cache(models):
    prompt = list(range(1, 60))
    params = SamplingParams(max_tokens=2, prompt_logprobs=2, temperature=0.0)
    whole = answer(models.engine(max_num_batched_tokens=256), [prompt], params)[0].prompt_logprobs
    engine = models.engine(max_num_batched_tokens=16)
    answer(engine, [prompt], SamplingParams(max_tokens=2))
    warm = answer(engine, [prompt, prompt[:7], prompt], params)
    assert len(whole) == len(prompt)
    assert whole[0] is None
    assert warm[0].prompt_logprobs == warm[2].prompt_logprobs == whole
    assert warm[1].prompt_logprobs == whole[:7]
    assert [next(iter(entry)) for entry in whole[1:]] == prompt[1:]


def test_the_reference_backend_agrees(models):
    prompts, params = workload(2)
    plain = [SamplingParams(max_tokens=6, logprobs=0, temperature=0.0) for _ in params]
    fast = answer(models.engine(), prompts, plain)
    slow = answer(models.engine(operations=ReferenceOperations()), prompts, plain)
    for ours, reference in zip(fast, slow, strict=True):
        assert ours.outputs[0].token_ids == reference.outputs[0].token_ids
        for one, other in zip(ours.outputs[0].logprobs, reference.outputs[0].logprobs, strict=True):
            assert next(iter(one.values())).logprob == pytest.approx(next(iter(other.values())).logprob, abs=1e-4)
