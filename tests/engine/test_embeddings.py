"""Embeddings: the pooled hidden states after the final norm, the same bits however the prompts are computed."""

import random

import numpy as np
import pytest
import torch
import transformers

import octavo.llm
from engine.tiny_engine import ByteTokenizer, run
from models.tiny import DictSource, build, checkpoint
from octavo import LLM, SamplingParams
from octavo.config import EngineConfig
from octavo.engine.loading import build_engine
from octavo.errors import CapacityError, RequestError
from octavo.kernels.cpu import CpuOperations
from octavo.models.generation_defaults import GenerationDefaults
from octavo.models.hf_config import from_hf_config
from octavo.models.model_files import ModelFiles
from octavo.models.weights import load_weights

PROMPTS = [random.Random(number).choices(range(1, 256), k=length) for number, length in enumerate((1, 2, 16, 17, 70, 70))]
KINDS = ("mean", "last")
TOLERANCE = 1e-5  # of a vector of length 1; float32 on both sides


def embed(engine, prompts, kind, **options):
    ids = [engine.add_embedding_request(prompt, pooling=kind, **options) for prompt in prompts]
    run(engine)
    return [engine.take(request_id).embedding for request_id in ids]


@pytest.fixture(scope="module")
def alone(models):
    """Each prompt's vectors, computed alone in one step."""
    fresh = {"enable_prefix_caching": False, "max_num_batched_tokens": 256}
    return {kind: [embed(models.engine(**fresh), [prompt], kind)[0] for prompt in PROMPTS] for kind in KINDS}


VARIANTS = {
    "in a batch": {},
    "chunks of 16": {"max_num_batched_tokens": 16},
    "chunks of 17": {"max_num_batched_tokens": 17},
    "two threads": {"num_threads": 2},
    "a tiny pool": {"kv_memory": "24 blocks", "max_num_batched_tokens": 32},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_gives_what_each_prompt_gives_alone(models, alone, variant, kind):
    engine = models.engine(**VARIANTS[variant])
    for _ in range(2):  # the second time, prefixes are cached
        for vector, expected in zip(embed(engine, PROMPTS, kind), alone[kind], strict=True):
            assert vector.dtype == np.float32 and np.array_equal(vector, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_in_the_middle(models, alone, kind):
    engine = models.engine(max_num_batched_tokens=16, enable_prefix_caching=False)
    request_id = engine.add_embedding_request(PROMPTS[-1], pooling=kind)
    for num_steps in (2, 1, 3):
        for _ in range(num_steps):
            engine.step()
        engine._scheduler._preempt(engine._scheduler.running[0])
    run(engine)
    output = engine.take(request_id)
    assert output.metrics.num_preemptions == 3
    assert np.array_equal(output.embedding, alone[kind][-1])


def test_beside_answers_neither_changes(models, alone):
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    expected = models.engine()
    expected.add_request(PROMPTS[3], params, request_id="answer")
    run(expected)
    engine = models.engine(max_num_batched_tokens=24)
    engine.add_request(PROMPTS[3], params, request_id="answer")
    vectors = embed(engine, PROMPTS, "mean")
    assert engine.take("answer").outputs[0].token_ids == expected.take("answer").outputs[0].token_ids
    assert all(np.array_equal(vector, other) for vector, other in zip(vectors, alone["mean"], strict=True))


def test_last_reads_the_prefix_cache_and_mean_computes_every_token(models):
    engine = models.engine()
    outputs = {}
    for kind in ("mean", "last", "mean"):
        request_id = engine.add_embedding_request(PROMPTS[-1], pooling=kind)
        run(engine)
        outputs[kind] = engine.take(request_id)
    assert outputs["last"].num_prefix_hit_tokens == len(PROMPTS[-1]) - 1
    assert outputs["mean"].num_prefix_hit_tokens == 0


def test_result_has_no_tokens_and_leaves_nothing(models):
    engine = models.engine()
    request_id = engine.add_embedding_request("hello")
    run(engine)
    output = engine.take(request_id)
    (choice,) = output.outputs
    assert (choice.token_ids, choice.text, choice.finish_reason) == ([], "", "stop")
    assert engine.stats().memory.num_used_blocks == 0
    assert engine.stats().num_prompt_tokens == 5 and engine.stats().num_generated_tokens == 0


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_aborted_at_any_moment(models, num_steps):
    engine = models.engine(max_num_batched_tokens=16)
    request_id = engine.add_embedding_request(PROMPTS[-1])
    for _ in range(num_steps):
        engine.step()
    assert engine.abort(request_id).embedding is None
    engine.check_invariants()
    assert engine.stats().memory.num_used_blocks == 0


def test_a_prompt_may_be_as_long_as_the_model_allows(models):
    engine = models.engine(max_model_len=40)
    assert len(embed(engine, [[7] * 40], "mean")) == 1
    with pytest.raises(RequestError, match="41 tokens are more than max_model_len=40"):
        engine.add_embedding_request([7] * 41)
    with pytest.raises(CapacityError):
        models.engine(kv_memory="6 blocks").add_embedding_request([7] * 200)
    with pytest.raises(RequestError, match="pooling='max' is not one of mean, last"):
        engine.add_embedding_request([7], pooling="max")


def test_llm_embeds_in_order(models, monkeypatch, alone):
    monkeypatch.setattr(octavo.llm, "load_engine", lambda config: models.engine())
    llm = LLM("tiny")
    for kind in KINDS:
        outputs = llm.embed([{"prompt_token_ids": prompt} for prompt in PROMPTS], pooling=kind)
        assert all(np.array_equal(output.embedding, other) for output, other in zip(outputs, alone[kind], strict=True))
    with pytest.raises(RequestError):
        llm.embed(["good", ""])
    assert not llm.engine.has_unfinished_requests


@pytest.fixture(scope="module")
def oracle():
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=88,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=3,
        max_position_embeddings=128,
    )
    return build(config, seed=5)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_equal_transformers(oracle, kind):
    spec, source = from_hf_config(oracle.config.to_dict()), DictSource(checkpoint(oracle))
    operations = CpuOperations(1)
    files = ModelFiles("oracle", source, {}, ByteTokenizer(), None, GenerationDefaults())
    config = EngineConfig(kv_dtype="fp32", kv_memory="64 blocks", max_num_batched_tokens=32, max_num_seqs=8)
    engine = build_engine(config, files, spec, load_weights(spec, source, operations, "fp32"), operations)
    for vector, prompt in zip(embed(engine, PROMPTS, kind), PROMPTS, strict=True):
        with torch.no_grad():
            states = oracle(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0].double().numpy()
        expected = states.mean(axis=0) if kind == "mean" else states[-1]
        assert np.linalg.norm(vector - expected / np.linalg.norm(expected)) < TOLERANCE
