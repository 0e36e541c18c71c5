"""The decoder on the C++ backend: one recorded program per model, against transformers and against itself in other chunks."""

from itertools import pairwise

import numpy as np
import pytest

from models.test_decoder import CONFIGS, TOLERANCE, VOCAB
from models.tiny import DictSource, PagedRun, build, checkpoint, oracle_logits, relative_error
from octavo.kernels.cpu import CpuOperations, instruction_sets
from octavo.kernels.step_arrays import StepArrays
from octavo.models.decoder import forward
from octavo.models.hf_config import from_hf_config
from octavo.models.spec import ModelSpec
from octavo.models.weights import DecoderWeights, load_weights

NAMES = ["llama", "llama3-rope", "mistral-window", "qwen2", "qwen3", "gemma2-hard-caps", "gemma3", "phi3-partial-rope"]
TOKEN_IDS = np.random.default_rng(3).integers(0, VOCAB, 45).tolist()


class RecordedRun(PagedRun):
    """One sequence through a program of the C++ backend, recorded once for every step."""

    def __init__(self, spec: ModelSpec, weights: DecoderWeights, max_tokens: int, seed: int, ops: CpuOperations):
        super().__init__(spec, weights, max_tokens, seed, ops)
        self.arrays = StepArrays.allocate(max_tokens=max_tokens, max_seqs=1, num_groups=1, max_blocks_per_seq=len(self.block_table))
        self.program = ops.record()
        forward(self.program, spec, weights, self.arrays, self.caches, self.buffers)

    def compute(self, step: StepArrays) -> None:
        for name in ("token_ids", "positions", "context_lens", "cu_seqlens_q", "table_rows"):
            values = getattr(step, name)
            getattr(self.arrays, name)[: len(values)] = values
        self.arrays.slot_mapping[:, : len(step.token_ids)] = step.slot_mapping
        self.arrays.block_tables[:] = step.block_tables
        self.program.run(len(step.token_ids), 1)


@pytest.fixture(scope="module", params=instruction_sets())
def cpu(request):
    return CpuOperations(2, instruction_set=request.param)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_program_equals_transformers_in_any_chunks(cpu, name):
    config = CONFIGS[name]
    model, spec = build(config, seed=6), from_hf_config(config.to_dict())
    weights = load_weights(spec, DictSource(checkpoint(model)), cpu, "fp32")
    whole = RecordedRun(spec, weights, 45, 0, cpu).step(TOKEN_IDS)
    assert relative_error(whole, oracle_logits(model, TOKEN_IDS)) <= TOLERANCE
    cuts = [0, 1, 2, 3, 15, 16, 17, 20, 33, 45]
    run = RecordedRun(spec, weights, 45, 1, cpu)
    pieces = [run.step(TOKEN_IDS[begin:end]) for begin, end in pairwise(cuts)]
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


def test_recorded_and_eager_give_the_same_bits(cpu):
    config = CONFIGS["gemma3"]
    spec = from_hf_config(config.to_dict())
    weights = load_weights(spec, DictSource(checkpoint(build(config, seed=6))), cpu, "fp32")
    eager = PagedRun(spec, weights, 45, ops=cpu).step(TOKEN_IDS)
    assert RecordedRun(spec, weights, 45, 2, cpu).step(TOKEN_IDS).tobytes() == eager.tobytes()
