"""The decoder against transformers: logits of tiny random models, at every position, whole and token by token."""

from itertools import pairwise

import numpy as np
import pytest
import transformers

from models.tiny import OPS, DictSource, PagedRun, build, checkpoint, oracle_logits, relative_error, without
from octavo.models.hf_config import from_hf_config
from octavo.models.weights import load_weights

TOLERANCE = 2e-5  # of the norm of a position's logits, float32 on both sides; seen are 1e-6 to 4e-6
VOCAB = 211
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}


def llama(**fields):
    return transformers.LlamaConfig(**SIZES | fields)


def gemma2(**fields):
    defaults = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8, "num_hidden_layers": 4}
    return transformers.Gemma2Config(**SIZES | defaults | fields)


def gemma3(**fields):
    defaults = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8, "num_hidden_layers": 7}
    return transformers.Gemma3TextConfig(**SIZES | defaults | fields)


def phi3(**fields):
    return transformers.Phi3Config(**SIZES | {"pad_token_id": 0, "eos_token_id": 2} | fields)


CONFIGS = {
    "llama": llama(),
    "llama-tied": llama(tie_word_embeddings=True),
    "llama-head-dim": llama(head_dim=16, num_key_value_heads=1),
    "llama-biases": llama(attention_bias=True),
    "llama-heads-alone": llama(num_key_value_heads=4),
    "llama3-rope": llama(rope_parameters=LLAMA3),
    "llama-linear-rope": llama(rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}),
    "llama-dynamic-rope": llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}),
    "llama-yarn": llama(rope_parameters=YARN, head_dim=32),
    "llama-yarn-settings": llama(
        rope_parameters=YARN | {"beta_fast": 4.0, "beta_slow": 0.5, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.4},
        head_dim=32,
    ),
    "llama-yarn-attention-factor": llama(rope_parameters=YARN | {"attention_factor": 1.7}),
    "mistral-window": transformers.MistralConfig(**SIZES, sliding_window=7),
    "mistral-full": transformers.MistralConfig(**SIZES, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "qwen2-windows": transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=32),
    "qwen3-biases-windows": transformers.Qwen3Config(
        **SIZES, head_dim=16, attention_bias=True, use_sliding_window=True, sliding_window=5, max_window_layers=2
    ),
    "gemma2": gemma2(),
    "gemma2-hard-caps": gemma2(attn_logit_softcapping=0.5, final_logit_softcapping=2.0),
    "gemma2-no-caps": gemma2(attn_logit_softcapping=None, final_logit_softcapping=None),
    "gemma3": gemma3(),
    "gemma3-layer-types": gemma3(layer_types=["full_attention", "sliding_attention"] * 3 + ["full_attention"]),
    "gemma3-linear-rope": gemma3(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        }
    ),
    "phi3": phi3(),
    "phi3-window": phi3(sliding_window=11),
    "phi3-partial-rope": phi3(
        hidden_size=64, rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
    ),
    "phi3-longrope": phi3(
        hidden_size=64, original_max_position_embeddings=64, rope_parameters=LONGROPE | {"partial_rotary_factor": 0.5}
    ),
}


@pytest.fixture(params=sorted(CONFIGS), scope="module")
def case(request):
    """A model, its spec and weights, 45 tokens (three blocks, the last one partly filled), and our logits at each of them."""
    config = CONFIGS[request.param]
    model = build(config, seed=sum(request.param.encode()))
    spec = from_hf_config(config.to_dict())
    weights = load_weights(spec, DictSource(checkpoint(model)), OPS, "fp32")
    token_ids = np.random.default_rng(3).integers(0, VOCAB, 45).tolist()
    return model, spec, weights, token_ids, PagedRun(spec, weights, 45).step(token_ids)


def test_logits_equal_transformers(case):
    model, _, _, token_ids, whole = case
    assert relative_error(whole, oracle_logits(model, token_ids)) <= TOLERANCE


def test_chunks_of_any_size_give_the_same_bits(case):
    _, spec, weights, token_ids, whole = case
    run = PagedRun(spec, weights, 45, seed=1)
    cuts = [0, 1, 2, 15, 16, 17, 20, 33, 45]
    pieces = [run.step(token_ids[begin:end]) for begin, end in pairwise(cuts)]
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


def test_token_by_token_gives_the_same_bits(case):
    _, spec, weights, token_ids, whole = case
    run = PagedRun(spec, weights, 45, seed=2)
    assert np.concatenate([run.step([token_id]) for token_id in token_ids]).tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mistral-window", {"windows": (None, 7, 7)}),
        ("gemma2", {"query_scale": 0.25}),
        ("gemma2", {"embedding_scale": 1.0}),
        ("gemma2", {"final_soft_cap": 0.0}),
        ("gemma2-hard-caps", {"attention_soft_cap": 0.0}),
        ("gemma3", {"layer_rotaries": (0,) * 7}),
        ("gemma3", {"windows": (8, 8, 8, 8, 8, 9, 8)}),
        ("gemma3", {"norm_weight_offset": 0.0}),
        ("llama", {"rms_norm_eps": 1e-2}),
        ("llama", {"activation": "gelu_tanh"}),
    ],
)
def test_the_comparison_sees_each_field(name, changes):
    """A wrong value of a field must not pass the comparison above."""
    config = CONFIGS[name]
    model, spec = build(config, seed=5), without(from_hf_config(config.to_dict()), **changes)
    weights = load_weights(spec, DictSource(checkpoint(model)), OPS, "fp32")
    token_ids = np.random.default_rng(3).integers(0, VOCAB, 45).tolist()
    assert relative_error(PagedRun(spec, weights, 45).step(token_ids), oracle_logits(model, token_ids)) > 10 * TOLERANCE


def test_a_token_outside_the_windows_reach_changes_nothing():
    """With windows of 7 in all three layers, position p depends on positions above p - 3 * 6 - 1 only."""
    config = CONFIGS["mistral-window"]
    model, spec = build(config, seed=5), from_hf_config(config.to_dict())
    weights = load_weights(spec, DictSource(checkpoint(model)), OPS, "fp32")
    token_ids = np.random.default_rng(3).integers(0, VOCAB, 30).tolist()
    changed = [*token_ids[:4], (token_ids[4] + 1) % VOCAB, *token_ids[5:]]
    before, after = (PagedRun(spec, weights, 30).step(ids) for ids in (token_ids, changed))
    assert before[23:].tobytes() == after[23:].tobytes()
    assert before[22].tobytes() != after[22].tobytes()
