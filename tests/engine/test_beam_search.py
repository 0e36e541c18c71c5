"""Beam search: transformers' beams and scores, whatever the pool, and nothing left behind."""

import random

import pytest
import torch
import transformers

from engine.tiny_engine import ByteTokenizer, full_attention, run
from models.tiny import DictSource, build, checkpoint
from octavo import BeamSearchParams
from octavo.config import EngineConfig
from octavo.engine.loading import build_engine
from octavo.errors import CapacityError, RequestError
from octavo.kernels.cpu import CpuOperations
from octavo.models.generation_defaults import GenerationDefaults
from octavo.models.hf_config import from_hf_config
from octavo.models.model_files import ModelFiles
from octavo.models.weights import load_weights

TOLERANCE = 1e-4  # of a score; seen are 1e-6: both sides sum float32 log-probabilities of some tens of tokens
SIZES = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=7),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=32),
    "gemma3": transformers.Gemma3TextConfig(**SIZES, head_dim=16, query_pre_attn_scalar=24, sliding_window=8),
    "phi3": transformers.Phi3Config(**SIZES, pad_token_id=0, eos_token_id=2),
}


class Pair:
    """One tiny model in transformers and here."""

    def __init__(self, config, seed):
        self.oracle = build(config, seed)
        self.spec = from_hf_config(config.to_dict())
        self.operations = CpuOperations(1)
        self.source = DictSource(checkpoint(self.oracle))
        self.weights = load_weights(self.spec, self.source, self.operations, "fp32")

    def engine(self, end_token_ids, **settings):
        config = EngineConfig(**{"kv_dtype": "fp32", "kv_memory": "200 blocks", "max_num_seqs": 16} | settings)
        defaults = GenerationDefaults(end_token_ids=frozenset(end_token_ids))
        files = ModelFiles("tiny", self.source, {}, ByteTokenizer(), None, defaults)
        return build_engine(config, files, self.spec, self.weights, self.operations)

    def expected(self, prompt, params, end_token_ids):
        """Returns transformers' answers and scores."""
        with torch.no_grad():
            result = self.oracle.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                do_sample=False,
                num_beams=params.num_beams,
                num_return_sequences=params.num_answers,
                max_new_tokens=params.max_tokens,
                length_penalty=params.length_penalty,
                early_stopping=params.early_stopping,
                eos_token_id=sorted(end_token_ids) or None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_scores=True,
            )
        answers = [_until_end(ids[len(prompt) :].tolist(), end_token_ids) for ids in result.sequences]
        return answers, result.sequences_scores.tolist()


def _until_end(ids, end_token_ids):
    ends = [index + 1 for index, token in enumerate(ids) if token in end_token_ids]
    return ids[: ends[0]] if ends else ids


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request):
    return Pair(CONFIGS[request.param], seed=len(request.param))


def search(engine, prompts, params):
    ids = [engine.add_beam_search(prompt, params) for prompt in prompts]
    run(engine)
    return [engine.take(request_id).outputs for request_id in ids]


def check_equal(outputs, expected):
    answers, scores = expected
    assert [output.token_ids for output in outputs] == answers
    assert [output.beam_score for output in outputs] == pytest.approx(scores, rel=TOLERANCE)


def end_tokens(pair, prompt):
    """Returns tokens that good answers have at different places, so that beams end early and late."""
    answers, _ = pair.expected(prompt, BeamSearchParams(num_beams=4, max_tokens=10), set())
    return {answers[0][6], answers[1][3], answers[3][8]}


def test_beams_and_scores_are_transformers(pair):
    source = random.Random(7)
    prompts = [[source.randrange(3, 211) for _ in range(length)] for length in (1, 40)]
    end_token_ids = end_tokens(pair, prompts[1])
    engine = pair.engine(end_token_ids)
    for num_beams, length_penalty, early_stopping in ((2, 1.0, False), (4, 0.0, True), (4, 2.0, "never"), (5, -1.0, False)):
        params = BeamSearchParams(num_beams=num_beams, max_tokens=12, length_penalty=length_penalty, early_stopping=early_stopping)
        for outputs, prompt in zip(search(engine, prompts, params), prompts, strict=True):
            check_equal(outputs, pair.expected(prompt, params, end_token_ids))


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_every_end_of_a_search_and_every_length_penalty_are_transformers(llama, early_stopping):
    source = random.Random(5)
    prompt = [source.randrange(3, 211) for _ in range(9)]
    end_token_ids = end_tokens(llama, prompt)
    engine = llama.engine(end_token_ids)
    for length_penalty in (-2.0, -0.5, 0.0, 0.6, 1.0, 3.0):
        params = BeamSearchParams(num_beams=3, n=3, max_tokens=14, length_penalty=length_penalty, early_stopping=early_stopping)
        (outputs,) = search(engine, [prompt], params)
        check_equal(outputs, llama.expected(prompt, params, end_token_ids))


@pytest.fixture(scope="module")
def llama():
    return Pair(CONFIGS["llama"], seed=11)


# ---- on the tiny byte model

PARAMS = BeamSearchParams(num_beams=4, max_tokens=24)
PROMPTS = [list(range(1, 40)), list(range(9, 28)), [7]]
ENDS = {"end_token_ids": (0, 13, 77)}


def bits(outputs):
    return [(output.token_ids, output.beam_score, output.finish_reason, output.text) for output in outputs]


@pytest.fixture
def alone(models):
    """What each prompt gives alone in a wide pool without a prefix cache."""
    engine = models.engine(**ENDS, kv_memory="200 blocks", enable_prefix_caching=False)
    return [bits(search(engine, [prompt], PARAMS)[0]) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_memory": "200 blocks"},
        {"kv_memory": "14 blocks"},
        {"kv_memory": "12 blocks"},
        {"kv_memory": "14 blocks", "enable_prefix_caching": False},
        {"max_num_seqs": 1, "kv_memory": "40 blocks"},
        {"max_num_seqs": 3, "kv_memory": "20 blocks"},
        {"max_num_batched_tokens": 16, "kv_memory": "40 blocks"},
        {"block_size": 32, "kv_memory": "40 blocks"},
        {"num_threads": 2},
    ],
    ids=str,
)
def test_neither_the_pool_nor_the_batch_changes_a_bit(models, alone, settings):
    engine = models.engine(**ENDS, **settings)
    assert [bits(outputs) for outputs in search(engine, PROMPTS, PARAMS)] == alone
    memory = engine.stats().memory
    assert memory.num_used_blocks == 0
    if settings.get("kv_memory") in ("14 blocks", "12 blocks"):
        assert engine.stats().num_preemptions > 0
    assert [bits(outputs) for outputs in search(engine, PROMPTS, PARAMS)] == alone, "with a warm cache"


def test_beams_preempted_at_any_moment_give_the_same(models, alone):
    engine, source = models.engine(**ENDS, kv_memory="100 blocks"), random.Random(2)
    ids = [engine.add_beam_search(prompt, PARAMS) for prompt in PROMPTS]
    num_preemptions = 0
    while engine.has_unfinished_requests:
        engine.step()
        for sequence in list(engine._scheduler.running):
            if num_preemptions < 40 and source.random() < 0.2:
                engine._scheduler._preempt(sequence)
                num_preemptions += 1
        engine.check_invariants()
    outputs = [engine.take(request_id) for request_id in ids]
    assert [bits(output.outputs) for output in outputs] == alone
    assert sum(output.metrics.num_preemptions for output in outputs) == num_preemptions == 40


def test_all_beams_are_computed_together_on_shared_blocks(models):
    engine = models.engine(spec=full_attention(), kv_memory="200 blocks", max_num_batched_tokens=256)
    prompt = [1 + token % 250 for token in range(160)]
    engine.add_beam_search(prompt, BeamSearchParams(num_beams=8, max_tokens=20))
    used_blocks = []
    while engine.has_unfinished_requests:
        engine.step()
        used_blocks.append(engine.stats().memory.num_used_blocks)
    assert len(used_blocks) == 20  # one for the prompt and the first token, one for each further token of all beams
    assert 160 / 16 + 2 <= max(used_blocks) <= 160 / 16 + 8 * 2  # the prompt once, and what each beam alone has written


def test_beams_beside_other_requests_change_neither(models, alone):
    from engine.tiny_engine import answer
    from engine.tiny_engine import bits as answer_bits
    from octavo import SamplingParams

    params = SamplingParams(max_tokens=20, temperature=1.0, seed=3, logprobs=1, n=2, ignore_eos=True)
    apart = answer_bits(answer(models.engine(**ENDS), [PROMPTS[0]], params)[0])
    engine = models.engine(**ENDS, kv_memory="20 blocks")
    sampled = engine.add_request(PROMPTS[0], params)
    searches = [engine.add_beam_search(prompt, PARAMS) for prompt in PROMPTS]
    run(engine)
    assert answer_bits(engine.take(sampled)) == apart
    assert [bits(engine.take(request_id).outputs) for request_id in searches] == alone


@pytest.mark.parametrize("num_steps", [0, 1, 3, 9])
def test_an_aborted_search_keeps_its_best_and_frees_its_blocks(models, num_steps):
    engine = models.engine(kv_memory="20 blocks")
    request_id = engine.add_beam_search(PROMPTS[0], PARAMS)
    for _ in range(num_steps):
        engine.step()
    output = engine.abort(request_id)
    engine.check_invariants()
    assert {choice.finish_reason for choice in output.outputs} == {"abort"}
    assert {len(choice.token_ids) for choice in output.outputs} == {num_steps}
    assert engine.stats().memory.num_used_blocks == 0
    assert not engine.has_unfinished_requests


def test_a_search_ends_at_the_model_s_length(models):
    engine = models.engine(max_model_len=48)
    for outputs in search(engine, [list(range(1, 40))], BeamSearchParams(num_beams=3)):  # the default length gives way
        assert {len(output.token_ids) for output in outputs} == {9}
        assert {output.finish_reason for output in outputs} == {"length"}
    with pytest.raises(RequestError, match="max_model_len=48"):
        engine.add_beam_search(list(range(1, 40)), BeamSearchParams(num_beams=3, max_tokens=10))


def test_what_cannot_be_searched_is_refused(models):
    engine = models.engine(kv_memory="8 blocks", end_token_ids=(0, 1, 2, 3))
    with pytest.raises(CapacityError, match="the whole pool has 8"):
        engine.add_beam_search(list(range(1, 100)), BeamSearchParams(num_beams=2))
    with pytest.raises(RequestError, match="most likely tokens"):
        engine.add_beam_search([1], BeamSearchParams(num_beams=60))
    assert not engine.has_unfinished_requests


@pytest.mark.parametrize(
    "fields",
    [
        {"num_beams": 0},
        {"num_beams": 65},
        {"num_beams": 2, "n": 3},
        {"num_beams": 2, "n": 0},
        {"num_beams": 2, "max_tokens": 0},
        {"num_beams": 2, "max_tokens": "3"},
        {"num_beams": 2, "length_penalty": float("nan")},
        {"num_beams": 2, "length_penalty": "1"},
        {"num_beams": 2, "early_stopping": "always"},
        {"num_beams": 2, "early_stopping": 1},
        {"num_beams": 2, "ignore_eos": 1},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused_by_name(fields):
    with pytest.raises(RequestError) as caught:
        BeamSearchParams(**fields)
    assert caught.value.field == list(fields)[-1]
