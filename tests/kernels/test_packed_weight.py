"""Packing: what the C++ backend keeps of a file's weights, what it rounds, and what it refuses."""

import threading
from pathlib import Path

import numpy as np
import pytest

from kernels.weight_cases import dense_tensor, random_tensor
from octavo.kernels.cpu import CpuOperations
from octavo.kernels.host_tensor import QUANTISED_ENCODINGS, HostTensor


@pytest.fixture(scope="module")
def ops() -> CpuOperations:
    return CpuOperations(2)


def unpacked(ops, weight):
    values = np.empty(weight.shape, np.float32)
    ops.embed(np.arange(weight.shape[0], dtype=np.int32), weight, values)
    return values


@pytest.mark.parametrize("weight_format", ["int8", "int4", "fp32"])
@pytest.mark.parametrize("encoding", QUANTISED_ENCODINGS)
@pytest.mark.parametrize("num_outputs", [32, 45])
def test_quantised_tensors_keep_their_values(ops, rng, encoding, weight_format, num_outputs):
    tensor = random_tensor(rng, num_outputs, 512, encoding)
    np.testing.assert_array_equal(unpacked(ops, ops.pack_weight([tensor], weight_format)), tensor.to_float32())


@pytest.mark.parametrize("encoding", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("num_inputs", [1, 31, 33, 100])
def test_dense_tensors_keep_their_values_in_fp32(ops, rng, encoding, num_inputs):
    tensor = random_tensor(rng, 35, num_inputs, encoding)
    np.testing.assert_array_equal(unpacked(ops, ops.pack_weight([tensor], "fp32")), tensor.to_float32())


def test_bf16_rounds_to_nearest_even(ops):
    values = np.array([[1.0, 1.00390625, 1.01171875, -3.0e38, np.inf, np.nan, 2.0**-133]], np.float32)
    got = unpacked(ops, ops.pack_weight([dense_tensor(values)], "bf16"))
    expected = np.array([[1.0, 1.0, 1.015625, -3.0043e38, np.inf, np.nan, 2.0**-133]], np.float32)
    np.testing.assert_allclose(got, expected, rtol=1e-4)


@pytest.mark.parametrize(("weight_format", "levels"), [("int8", 254), ("int4", 15)])
def test_dense_tensors_are_rounded_to_the_nearest_level_of_their_group(ops, rng, weight_format, levels):
    values = rng.standard_normal((40, 96)).astype(np.float32) * np.float32(0.1)
    got = unpacked(ops, ops.pack_weight([dense_tensor(values)], weight_format))
    groups = values.reshape(40, 3, 32)
    width = 2 * np.abs(groups).max(axis=2) if weight_format == "int8" else np.ptp(groups, axis=2)
    # Half a level; the scale and the minimum are themselves rounded to 11 bits.
    allowed = width / levels / 2 + np.abs(groups).max(axis=2) * 2.0**-10
    assert (np.abs(got.reshape(groups.shape) - groups) <= allowed[..., None]).all()


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_groups_of_one_value_are_exact(ops, weight_format):
    values = np.repeat(np.array([[0.0, 0.5, -127.0]], np.float32), 32, axis=1).repeat(2, axis=0)
    got = unpacked(ops, ops.pack_weight([dense_tensor(values)], weight_format))
    np.testing.assert_allclose(got, values, rtol=1e-3, atol=0)


def test_bytes_per_weight_are_those_of_the_format(ops, rng):
    tensor = random_tensor(rng, 64, 128, "f32")
    bits = {f: ops.pack_weight([tensor], f).num_bytes * 8 / (64 * 128) for f in ("fp32", "bf16", "int8", "int4")}
    assert bits == {"fp32": 32, "bf16": 16, "int8": 8.5, "int4": 5}


def test_wrong_tensors_are_refused(ops, rng):
    good = random_tensor(rng, 4, 64, "f32")
    short = HostTensor("w", (4, 64), "q4_1", np.zeros((4, 20), np.uint8))
    ragged = HostTensor("w", (4, 40), "q4_1", np.zeros((4, 25), np.uint8))
    for parts, message in [
        ([short], "size"),
        ([ragged], "multiple of 32"),
        ([good, random_tensor(rng, 4, 32, "f32")], "width"),
        ([], "at least one"),
        ([random_tensor(rng, 33, 256, e) for e in ("q4_k", "q6_k", "q4_1", "q8_0", "q5_1")], "at most 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            ops.pack_weight(parts, "int4")
    with pytest.raises(ValueError, match="int3"):
        ops.pack_weight([good], "int3")


def page_faults() -> dict[int, int]:
    """Returns how many pages each of the process's threads was the first to touch, by thread id."""
    stats = {int(task.name): (task / "stat").read_text() for task in Path("/proc/self/task").iterdir()}
    return {thread_id: int(stat.rpartition(")")[2].split()[7]) for thread_id, stat in stats.items()}


def test_every_thread_packs_its_share():
    """Whoever packs a panel is the first to write to its pages."""
    values = np.ones((12288, 1024), np.float32)  # 48 MiB: eight huge pages for each thread
    others = set(page_faults()) - {threading.get_native_id()}
    ops = CpuOperations(3)
    ops.pack_weight([dense_tensor(values[:32])], "fp32")  # the threads run, and have touched what they need for themselves
    before = page_faults()
    ops.pack_weight([dense_tensor(values)], "fp32")
    counts = {thread_id: count - before[thread_id] for thread_id, count in page_faults().items() if thread_id not in others}
    assert len(counts) == 3
    assert min(counts.values()) > sum(counts.values()) / 6, counts
