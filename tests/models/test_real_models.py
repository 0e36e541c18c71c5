"""The packaged models against transformers, teacher-forced over English text; skipped where the files are not in the cache."""

from pathlib import Path

import numpy as np
import pytest

from octavo.config import EngineConfig
from octavo.engine.loading import load_engine
from octavo.models.cache_directory import cache_directory
from octavo.models.packaged_models import PACKAGED_MODELS
from octavo.sampling_params import SamplingParams

TEXT = (Path(__file__).parent.parent / "data" / "english.txt").read_text(encoding="utf-8")
NUM_TOKENS = 501


def oracle_logprobs(path, token_ids):
    """Returns transformers' log-probabilities of every next token in fp32, ``[len(token_ids) - 1, vocab]``."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0, :-1].double()
    return torch.log_softmax(logits, dim=-1).numpy()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize("alias", PACKAGED_MODELS)
def test_logprobs_of_english_text_equal_those_of_transformers(alias):
    path = cache_directory() / "models" / PACKAGED_MODELS[alias].file_name
    if not path.exists():
        pytest.skip(f"{alias} is not in the cache: octavo pull {alias}")
    engine = load_engine(EngineConfig(model=str(path), weights="fp32", kv_dtype="fp32", kv_memory="128MiB", max_model_len=1024))
    token_ids = engine.tokenizer.encode(TEXT)[:NUM_TOKENS]
    assert len(token_ids) == NUM_TOKENS
    request_id = engine.add_request(token_ids, SamplingParams(max_tokens=1, prompt_logprobs=1))
    while engine.has_unfinished_requests:
        engine.step()
    ours = engine.take(request_id).prompt_logprobs[1:]
    oracle = oracle_logprobs(path, token_ids)
    chosen = np.array([entry[token].logprob for token, entry in zip(token_ids[1:], ours, strict=True)])
    best = np.array([min(entry, key=lambda token: entry[token].rank) for entry in ours])
    assert np.mean(best == oracle.argmax(axis=1)) >= 0.99
    assert np.mean(np.abs(chosen - oracle[np.arange(NUM_TOKENS - 1), token_ids[1:]])) <= 0.01
