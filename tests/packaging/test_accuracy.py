"""`benchmarks/accuracy.py`, `benchmarks/random_model.py`: what is measured is what is said, on models of a few thousand weights."""

import math
from pathlib import Path

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.engine import loading
from octavo.models.model_files import load_model_files

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
TEXT = "The harbour office stood at the end of the long pier."


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch):
    """Returns the benchmark's module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import accuracy

    return accuracy


@pytest.fixture
def checkpoint(accuracy, tmp_path: Path) -> Path:
    """Returns the folder of a tiny dense model."""
    import random_model

    random_model.write_checkpoint(tmp_path, CONFIG)
    return tmp_path


def test_figures_of_known_distributions(accuracy) -> None:
    uniform = np.log(np.full((3, 4), 0.25, np.float32))
    peaked = np.log(np.tile(np.array([0.5, 0.25, 0.125, 0.125], np.float32), (3, 1)))
    assert accuracy.perplexity(uniform, [0, 1, 2, 3]) == pytest.approx(4)
    assert accuracy.perplexity(peaked, [3, 0, 1, 2]) == pytest.approx(2 ** ((1 + 2 + 3) / 3))
    assert accuracy.divergence(peaked, peaked) == 0
    assert accuracy.divergence(uniform, peaked) == pytest.approx(0.25 * math.log(2))
    assert accuracy.divergence(peaked, uniform) == pytest.approx(0.25 * math.log(2))
    assert accuracy.changed_share(peaked, np.concatenate([peaked[:2], peaked[:1, ::-1]])) == pytest.approx(1 / 3)


def test_distributions_are_those_that_log_probabilities_are_read_from(accuracy, checkpoint: Path) -> None:
    files = load_model_files(str(checkpoint))
    token_ids = files.tokenizer.encode(TEXT)
    found, _ = accuracy.distributions_of(files, "bf16", "bf16", token_ids, 1)
    llm = LLM(str(checkpoint), kv_memory="16 blocks", num_threads=1)
    (output,) = llm.generate([token_ids], SamplingParams(max_tokens=1, prompt_logprobs=0))
    expected = [scores[token].logprob for scores, token in zip(output.prompt_logprobs[1:], token_ids[1:], strict=True)]
    assert found.shape == (len(token_ids) - 1, CONFIG["vocab_size"])
    assert np.exp(found).sum(axis=1) == pytest.approx(1)
    assert found[np.arange(len(expected)), token_ids[1:]] == pytest.approx(expected, abs=1e-5)


def test_fewer_bits_are_further_from_the_reference(accuracy, checkpoint: Path) -> None:
    rows = {(row.weights, row.kv_dtype): row for row in accuracy.compare(str(checkpoint), TEXT, 1)}
    assert [*rows] == [accuracy.REFERENCE, *accuracy.DENSE_CASES]
    int8, int4 = rows["int8", "bf16"], rows["int4", "bf16"]
    assert 0 < int8.divergence < int4.divergence
    assert rows["bf16", "int8"].divergence > 0
    assert int4.weights_bytes < int8.weights_bytes < rows["bf16", "bf16"].weights_bytes < rows["fp32", "fp32"].weights_bytes


def test_loading_says_what_became_of_the_weights(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(loading.logger, "info", lambda message, *values: said.append(message % values))
    LLM(str(checkpoint), kv_memory="16 blocks", weights="int4", num_threads=1)
    assert said == ["weights: 15 bf16 rounded to int4 in groups of 32, 9 norms and biases as float32: 0 MiB"]
