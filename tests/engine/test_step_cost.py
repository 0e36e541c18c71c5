"""What a step costs in Python beside the model grows with its sequences alone: counted, not timed."""

import sys
import tracemalloc

from engine.tiny_engine import full_attention
from octavo.sampling_params import SamplingParams

NUM_WARM_STEPS, NUM_COUNTED_STEPS = 5, 8  # within one block, when a prompt ends one token into it
MAX_CALLS = 5  # of Python functions, for a sequence in a step
PARAMS = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, allowed_token_ids=list(range(32, 127)))  # whole characters


def decoding(models, num_seqs, num_prompt_tokens):
    """Returns an engine in which sequences with different prompts of equal length decode."""
    engine = models.engine(spec=full_attention(), max_num_seqs=64, max_num_batched_tokens=2048, kv_memory="2000 blocks")
    for first in range(num_seqs):
        engine.add_request([1 + first, *range(1, num_prompt_tokens)], PARAMS)
    for _ in range(1 + NUM_WARM_STEPS):  # the first computes all prompts
        engine.step()
    return engine


def count_calls(engine):
    """Returns how many functions of Python are entered in some steps."""
    num_calls = 0

    def count(frame, event, argument):
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(count)
    try:
        for _ in range(NUM_COUNTED_STEPS):
            engine.step()
    finally:
        sys.setprofile(None)
    return num_calls


def peak_bytes(engine):
    """Returns the most memory that Python's objects take beyond what they took before some steps."""
    tracemalloc.start()
    try:
        for _ in range(NUM_COUNTED_STEPS):
            engine.step()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_calls_grow_linearly_with_the_sequences(models):
    few, some, many = (count_calls(decoding(models, num_seqs, 17)) for num_seqs in (4, 16, 64))
    assert many - some <= 4 * (some - few)
    assert (some - few) / 12 / NUM_COUNTED_STEPS <= MAX_CALLS


def test_neither_calls_nor_memory_grow_with_the_context(models):
    assert count_calls(decoding(models, 4, 193)) <= count_calls(decoding(models, 4, 17))
    short, long = (min(peak_bytes(decoding(models, 4, num_tokens)) for _ in range(2)) for num_tokens in (17, 193))
    assert long <= short + 1000  # a copy of one sequence's tokens would be 1,600
