"""Tiny random models for the tests, their oracle's logits, and a runner that pages their KV."""

import dataclasses

import numpy as np
import torch
import transformers

from octavo.kernels.host_tensor import HostTensor
from octavo.kernels.kv_layout import KVLayer, KVLayout
from octavo.kernels.operations import Operations
from octavo.kernels.reference import ReferenceOperations
from octavo.kernels.step_arrays import StepArrays
from octavo.models.decoder import DecoderBuffers, LayerCache, forward
from octavo.models.spec import ModelSpec
from octavo.models.weights import DecoderWeights, load_weights

BLOCK_SIZE = 16
OPS = ReferenceOperations()
torch.set_num_threads(1)  # the models are too small to share out


class DictSource:
    """A `TensorSource` over arrays in memory; counts the reads of each tensor."""

    def __init__(self, tensors: dict[str, np.ndarray], naming: str = "hf"):
        self.tensors = tensors
        self.naming = naming
        self.reads = dict.fromkeys(tensors, 0)

    def names(self):
        return self.tensors.keys()

    def shape(self, name):
        return self.tensors[name].shape

    def read(self, name):
        self.reads[name] += 1
        return HostTensor(name, self.tensors[name].shape, "f32", self.tensors[name])


def build(config: transformers.PretrainedConfig, seed: int) -> torch.nn.Module:
    """Returns a random float32 model whose logits differ clearly and whose norms and biases all matter."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if parameter.ndim == 1 else 0.15
            centre = 1.0 if "norm" in name and "gemma" not in config.model_type else 0.0
            parameter.copy_(centre + spread * torch.randn_like(parameter))
    return model


def checkpoint(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Returns the tensors that a saved checkpoint would hold: a tied head once."""
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    if model.config.get_text_config().tie_word_embeddings:
        tensors.pop("lm_head.weight")
    return tensors


def oracle_logits(model: torch.nn.Module, token_ids: list[int]) -> np.ndarray:
    """Returns the logits at every position, float32 ``[len(token_ids), vocab]``."""
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].numpy()


class PagedRun:
    """One sequence through `forward` on an eager backend, its KV in shuffled blocks of otherwise NaN storage."""

    def __init__(self, spec: ModelSpec, weights: DecoderWeights, max_tokens: int, seed: int = 0, ops: Operations = OPS):
        self.spec, self.weights, self.ops = spec, weights, ops
        num_blocks = -(-max_tokens // BLOCK_SIZE)
        layout = KVLayout("fp32", BLOCK_SIZE, spec.num_layers, spec.num_kv_heads, spec.head_dim)
        storage = np.full((num_blocks + 3, layout.block_bytes), 0xFF, np.uint8)
        self.block_table = np.random.default_rng(seed).permutation(num_blocks + 3)[:num_blocks].astype(np.int32)
        self.caches = [LayerCache(0, KVLayer(storage, layout, layer)) for layer in range(spec.num_layers)]
        self.buffers = DecoderBuffers.allocate(spec, max_tokens)
        self.num_computed = 0

    def step(self, token_ids: list[int]) -> np.ndarray:
        """Computes the next tokens and returns the logits at each of them."""
        count = len(token_ids)
        positions = np.arange(self.num_computed, self.num_computed + count, dtype=np.int32)
        self.num_computed += count
        slots = self.block_table[positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        arrays = StepArrays(
            token_ids=np.array(token_ids, np.int32),
            positions=positions,
            slot_mapping=slots[None],
            block_tables=self.block_table[None, None],
            table_rows=np.zeros(1, np.int32),
            context_lens=np.array([self.num_computed], np.int32),
            cu_seqlens_q=np.array([0, count], np.int32),
        )
        self.compute(arrays)
        out = np.empty((count, self.spec.vocab_size), np.float32)
        self.ops.logits(
            self.buffers.hidden,
            np.arange(count, dtype=np.int32),
            self.weights.final_norm,
            self.weights.head,
            out,
            eps=self.spec.rms_norm_eps,
            soft_cap=self.spec.final_soft_cap,
        )
        return out

    def compute(self, step: StepArrays) -> None:
        """Computes the hidden states of one step."""
        forward(self.ops, self.spec, self.weights, step, self.caches, self.buffers.first_rows(len(step.token_ids)))


def paged_logits(spec: ModelSpec, tensors: dict[str, np.ndarray], token_ids: list[int], naming: str = "hf") -> np.ndarray:
    """Returns the logits at every position from one step over the whole prompt."""
    weights = load_weights(spec, DictSource(tensors, naming), OPS, "fp32")
    return PagedRun(spec, weights, len(token_ids)).step(token_ids)


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest error at any position, as a share of the norm of that position's logits."""
    return float((np.linalg.norm(actual - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())


def without(spec: ModelSpec, **changes: object) -> ModelSpec:
    """Returns the spec with some fields changed."""
    return dataclasses.replace(spec, **changes)
