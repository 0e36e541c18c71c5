"""Checking a checkpoint's tensors and packing them."""

import dataclasses

import numpy as np
import pytest
import transformers

from models.tiny import OPS, DictSource, build, checkpoint, oracle_logits, paged_logits, relative_error
from octavo.errors import CheckpointError
from octavo.kernels.cpu import CpuOperations
from octavo.kernels.host_tensor import HostTensor
from octavo.models.hf_config import from_hf_config
from octavo.models.packing_summary import PackingSummary
from octavo.models.weights import load_weights

TOKEN_IDS = list(range(20))
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}


@pytest.fixture
def tied():
    model = build(transformers.LlamaConfig(**SIZES, tie_word_embeddings=True), seed=1)
    return model, from_hf_config(model.config.to_dict()), checkpoint(model)


@pytest.fixture
def untied():
    model = build(transformers.LlamaConfig(**SIZES), seed=2)
    return model, from_hf_config(model.config.to_dict()), checkpoint(model)


def test_every_tensor_is_read_once(untied):
    _, spec, tensors = untied
    source = DictSource(tensors)
    load_weights(spec, source, OPS, "fp32")
    assert set(source.reads.values()) == {1}


def test_a_tied_head_is_packed_once(tied):
    _, spec, tensors = tied
    weights = load_weights(spec, DictSource(tensors), OPS, "fp32")
    assert weights.head is weights.embedding


def test_a_tied_model_that_repeats_its_table_is_packed_once(tied):
    _, spec, tensors = tied
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    weights = load_weights(spec, DictSource(tensors), OPS, "fp32")
    assert weights.head is weights.embedding


def test_a_tied_model_that_ships_another_head_uses_it(tied, untied):
    """As transformers does: the flag must not throw a real head away."""
    model, spec, tensors = untied
    spec = dataclasses.replace(spec, tied_head=True)
    assert relative_error(paged_logits(spec, tensors, TOKEN_IDS), oracle_logits(model, TOKEN_IDS)) <= 1e-4


def test_an_untied_model_without_a_head_is_refused(untied):
    _, spec, tensors = untied
    del tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight'"):
        load_weights(spec, DictSource(tensors), OPS, "fp32")


def test_faults_are_named_before_anything_is_read(untied):
    _, spec, tensors = untied
    name = "model.layers.1.mlp.up_proj.weight"
    cases = {
        "missing": {k: v for k, v in tensors.items() if k != name},
        r"has shape \[48, 31\]": tensors | {name: tensors[name][:, :31]},
        "model.layers.0.self_attn.q_proj.bias": tensors | {"model.layers.0.self_attn.q_proj.bias": np.zeros(32, np.float32)},
        "embedding table": {k: v for k, v in tensors.items() if "embed" not in k},
    }
    for message, broken in cases.items():
        source = DictSource(broken)
        with pytest.raises(CheckpointError, match=message):
            load_weights(spec, source, OPS, "fp32")
        assert not any(source.reads.values())


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "vision_tower.encoder.weight"])
def test_tensors_that_text_does_not_need_are_let_be(untied, name):
    _, spec, tensors = untied
    source = DictSource(tensors | {name: np.zeros(4, np.float32)})
    load_weights(spec, source, OPS, "fp32")
    assert source.reads[name] == 0


@pytest.mark.parametrize(
    ("prefix", "head"),
    [("language_model.model.", "language_model.lm_head.weight"), ("model.language_model.", "lm_head.weight")],
)
def test_the_text_part_of_a_multimodal_checkpoint(untied, prefix, head):
    model, spec, tensors = untied
    renamed = {name.replace("model.", prefix, 1): value for name, value in tensors.items()}
    renamed[head] = renamed.pop("lm_head.weight")
    assert relative_error(paged_logits(spec, renamed, TOKEN_IDS), oracle_logits(model, TOKEN_IDS)) <= 1e-4


def test_num_bytes_counts_packed_weights_once(tied):
    _, spec, tensors = tied
    weights = load_weights(spec, DictSource(tensors), OPS, "fp32")
    assert weights.num_bytes == sum(value.nbytes for value in tensors.values() if value.ndim == 2)


@pytest.mark.parametrize(
    ("weight_format", "fate"), [("auto", "as in the file"), ("bf16", "as bf16"), ("int4", "rounded to int4 in groups of 32")]
)
def test_packing_says_what_became_of_the_tensors(tied, weight_format, fate):
    _, spec, tensors = tied
    weights = load_weights(spec, DictSource(tensors), CpuOperations(1), weight_format)
    num_matrices = sum(value.ndim == 2 for value in tensors.values())
    expected = f"{num_matrices} f32 {fate}, {len(tensors) - num_matrices} norms and biases as float32: 0 MiB"
    assert str(weights.packing) == expected


def test_packing_tells_tensors_that_keep_their_bits_from_those_that_are_rounded():
    packing = PackingSummary()
    quantised, dense = (HostTensor("w", (2, 32), encoding, np.zeros(0)) for encoding in ("q4_1", "bf16"))
    packing.add([quantised, quantised], "int4", 2**20)
    packing.add([quantised, dense], "int8", 2**21)
    packing.add([dense], "bf16", 2**21)
    packing.add([quantised], "bf16", 0)
    assert str(packing) == (
        "3 q4_1 as in the file, 1 bf16 rounded to int8 in groups of 32, "
        "1 bf16 as in the file, 1 q4_1 as bf16, 0 norms and biases as float32: 5 MiB"
    )
