"""octavo.planner: bytes of weights, from headers and computed, as stored and as packed."""

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.kernels.cpu import CpuOperations
from octavo.kernels.host_tensor import HostTensor
from octavo.models.gguf_header import TENSOR_TYPES
from octavo.planner.config_reader import read_plan_spec
from octavo.planner.formats import kv_format, weight_format
from octavo.planner.packed_sizes import packed_bytes
from octavo.planner.shipped_models import shipped_models
from octavo.planner.weight_sizes import sizes_from_headers, sizes_from_parameters

DENSE = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bf16": np.dtype("<u2")}
QUANTISED = {encoding: (size, num_bytes) for encoding, size, num_bytes in TENSOR_TYPES.values() if size > 1}


@pytest.mark.parametrize("encoding", QUANTISED)
@pytest.mark.parametrize("shape", [(64, 256), (40, 512)])
def test_packed_size_of_quantised_tensors_is_the_engines(encoding: str, shape: tuple[int, int]) -> None:
    group_size, group_bytes = QUANTISED[encoding]
    data = np.zeros((shape[0], shape[1] // group_size * group_bytes), np.uint8)
    packed = CpuOperations(1).pack_weight([HostTensor("w", shape, encoding, data)], "int8")
    assert packed_bytes(encoding, shape, data.nbytes) == packed.num_bytes


@pytest.mark.parametrize(("encoding", "weight_format"), [("f32", "fp32"), ("bf16", "bf16"), ("f16", "bf16")])
def test_packed_size_of_dense_tensors_is_the_engines(encoding: str, weight_format: str) -> None:
    data = np.zeros((40, 96), DENSE[encoding])
    packed = CpuOperations(1).pack_weight([HostTensor("w", (40, 96), encoding, data)], weight_format)
    assert packed_bytes(encoding, (40, 96), data.nbytes) == packed.num_bytes


def test_vectors_are_not_packed() -> None:
    assert packed_bytes("f32", (7,), 28) == 28


def test_headers_are_summed_exactly() -> None:
    tensors = {
        "model.embed_tokens.weight": 1000,
        "lm_head.weight": 1000,
        "model.layers.0.mlp.experts.0.up_proj.weight": 300,
        "model.layers.0.mlp.shared_expert.up_proj.weight": 50,
        "vision_tower.patch.weight": 7,
    }
    weights = sizes_from_headers(tensors)
    assert weights.is_exact
    assert (weights.total_bytes, weights.expert_bytes, weights.unread_bytes) == (2357, 300, 1007)
    assert weights.largest_tensor_bytes == 1000


def test_embedding_is_read_where_it_is_the_head_too() -> None:
    assert sizes_from_headers({"token_embd.weight": 1000, "blk.0.ffn_up.weight": 10}).unread_bytes == 0


@pytest.mark.parametrize(
    ("name", "bits"),
    [("fp32", 32), ("bf16", 16), ("fp8", 8), ("nvfp4", 4.5), ("mxfp4", 4.25), ("q8_0", 8.5), ("q4_k", 4.5), ("q6_k", 6.5625)],
)
def test_bits_per_weight(name: str, bits: float) -> None:
    assert weight_format(name).storage.num_bytes(256_000) * 8 / 256_000 == bits


@pytest.mark.parametrize("name", ["int8", "int4", "bf16", "fp32"])
def test_the_engines_own_formats_are_as_large_as_it_packs_them(name: str) -> None:
    packed = CpuOperations(1).pack_weight([HostTensor("w", (64, 256), "f32", np.zeros((64, 256), np.float32))], name)
    assert weight_format(name).storage.num_bytes(64 * 256) == packed.num_bytes


def test_q4_k_m_is_the_mix_that_files_hold() -> None:
    assert 4.80 <= weight_format("q4_k_m").storage.num_bytes(10**6) * 8 / 10**6 <= 4.84


@pytest.mark.parametrize(("name", "num_bytes"), [("fp8", 32), ("int8", 32), ("q8_0", 34), ("q4_0", 18), ("nvfp4", 18)])
def test_kv_bytes_of_32_elements(name: str, num_bytes: int) -> None:
    assert kv_format(name).num_bytes(32) == num_bytes


def test_only_linear_layers_are_quantised_in_nvfp4() -> None:
    spec = read_plan_spec(shipped_models()["llama-3.1-8b"].config)
    table = 128_256 * 4096
    linear = spec.parameters.attention + spec.parameters.mlp
    assert sizes_from_parameters(spec, "nvfp4").total_bytes == linear * 9 // 16 + 2 * (2 * table + spec.parameters.other)


@pytest.mark.parametrize("find", [kv_format, weight_format])
def test_unknown_format_is_refused_by_name(find) -> None:
    with pytest.raises(ConfigError, match="'fp3'"):
        find("fp3")
