"""The matrix products of the C++ backend: against float64, bit for bit against themselves, and at the edges of their layout."""

import numpy as np
import pytest

from kernels.tolerance import assert_close
from kernels.weight_cases import dense_tensor, random_tensor
from octavo.kernels.cpu import CpuOperations

FORMATS = ("fp32", "bf16", "int8", "int4")
# Every kind of panel: an encoding and the format that it is packed with.
PANELS = [("f32", f) for f in FORMATS] + [("q8_0", "int8"), ("q5_1", "int8"), ("q6_k", "int8"), ("q4_1", "int4"), ("q4_k", "int4")]
# One row, the edges of the register tiles and of the way with expanded weights, and more than a chunk of rows on one thread.
ROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 32, 64, 97, 200)
# Instruction sets that multiply in bf16 or round activations to eight bits for int8 weights.
NARROW_ACTIVATIONS = ("avx512_bf16", "avx512_amx", "emulated512", "emulated_amx", "neon_bf16")


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def product(ops, x, weight, **options):
    out = np.full((len(x), weight.shape[0]), np.nan, np.float32)
    ops.linear(x, weight, out, **options)
    return out


def unpacked(ops, weight):
    values = np.empty(weight.shape, np.float32)
    ops.embed(np.arange(weight.shape[0], dtype=np.int32), weight, values)
    return values.astype(np.float64)


def activation_rounding(cpu: CpuOperations, x: np.ndarray, weight_format: str) -> np.ndarray:
    """Returns how far each input may be rounded before it is multiplied, in the shape of ``x``."""
    narrow = cpu.instruction_set in NARROW_ACTIVATIONS
    if weight_format in ("fp32", "bf16"):
        return np.abs(x) * (2.0**-8 if narrow and weight_format == "bf16" and cpu.instruction_set != "neon_bf16" else 0)
    padded = np.zeros((len(x), -(-x.shape[1] // 32) * 32))
    padded[:, : x.shape[1]] = np.abs(x)
    largest = np.repeat(padded.reshape(len(x), -1, 32).max(axis=2), 32, axis=1)[:, : x.shape[1]]
    return largest / (127 if narrow or weight_format == "int4" else 32767) / 2


@pytest.mark.parametrize(("encoding", "weight_format"), PANELS)
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(96, 256), (33, 512), (70, 1024)])
def test_product_is_near_float64(cpu, rng, encoding, weight_format, num_outputs, num_inputs):
    weight = cpu.pack_weight([random_tensor(rng, num_outputs, num_inputs, encoding)], weight_format)
    x = normal(rng, 11, num_inputs) * (10.0 ** rng.integers(-3, 4, (11, 1))).astype(np.float32)
    values = unpacked(cpu, weight)
    expected = x.astype(np.float64) @ values.T
    terms = np.abs(values)
    if weight_format.startswith("int"):  # scale * q and the minimum may cancel, so terms are as large as their group's largest
        terms = 4 * terms.reshape(num_outputs, -1, 16).max(axis=2).repeat(16, axis=1)
    norm = np.abs(x).astype(np.float64) @ terms.T
    allowed = 1.01 * activation_rounding(cpu, x, weight_format) @ np.abs(values).T
    difference = product(cpu, x, weight) - expected
    assert_close(np.sign(difference) * np.maximum(np.abs(difference) - allowed, 0), np.zeros_like(expected), norm)


@pytest.mark.parametrize(("encoding", "weight_format"), PANELS)
def test_a_row_has_the_same_bits_in_every_batch_and_on_every_number_of_threads(cpu_by_num_threads, rng, encoding, weight_format):
    num_inputs = 768 if encoding != "f32" else 749
    tensor = random_tensor(rng, 235, num_inputs, encoding)
    weights = {n: ops.pack_weight([tensor], weight_format) for n, ops in cpu_by_num_threads.items()}
    x = normal(rng, max(ROW_COUNTS), num_inputs)
    alone = np.concatenate([product(cpu_by_num_threads[1], x[row : row + 1], weights[1]) for row in range(len(x))])
    for num_threads, ops in cpu_by_num_threads.items():
        for num_rows in ROW_COUNTS:
            first = int(rng.integers(0, len(x) - num_rows + 1))
            batch = product(ops, x[first : first + num_rows], weights[num_threads])
            assert batch.tobytes() == alone[first : first + num_rows].tobytes(), (num_threads, num_rows)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("num_rows", [1, 40])
def test_bias_and_accumulation_add_to_the_finished_sum(cpu, rng, weight_format, num_rows):
    weight = cpu.pack_weight([dense_tensor(normal(rng, 45, 64))], weight_format)
    x, bias, before = normal(rng, num_rows, 64), normal(rng, 45), normal(rng, num_rows, 45)
    plain = product(cpu, x, weight)
    assert product(cpu, x, weight, bias=bias).tobytes() == (plain + bias).tobytes()
    out = before.copy()
    cpu.linear(x, weight, out, bias=bias, accumulate=True)
    assert out.tobytes() == (before + (plain + bias)).tobytes()


@pytest.mark.parametrize("num_outputs", [(64, 32, 32), (33, 1, 40)])
@pytest.mark.parametrize("encodings", [("q4_1", "q4_1", "q4_1"), ("q4_k", "q4_k", "q6_k"), ("q5_0", "f32", "q8_0")])
def test_stacked_parts_give_what_each_gives_alone(cpu, rng, num_outputs, encodings):
    parts = [random_tensor(rng, n, 256, encoding) for n, encoding in zip(num_outputs, encodings, strict=True)]
    x = normal(rng, 6, 256)
    stacked = cpu.pack_weight(parts, "int4")
    assert stacked.shape == (sum(num_outputs), 256)
    alone = [product(cpu, x, cpu.pack_weight([part], "int4")) for part in parts]
    assert product(cpu, x, stacked).tobytes() == np.concatenate(alone, axis=1).tobytes()


@pytest.mark.parametrize("weight_format", FORMATS)
def test_rows_of_wider_arrays_are_read_and_written_in_place(cpu, rng, weight_format):
    weight = cpu.pack_weight([dense_tensor(normal(rng, 40, 48))], weight_format)
    wide_x, wide_out = normal(rng, 5, 60), np.full((5, 50), 7.0, np.float32)
    cpu.linear(wide_x[:, :48], weight, wide_out[:, :40])
    assert wide_out[:, :40].tobytes() == product(cpu, np.ascontiguousarray(wide_x[:, :48]), weight).tobytes()
    assert (wide_out[:, 40:] == 7.0).all()


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_poisoned_row_shows_it_and_leaves_its_neighbours_alone(cpu, rng, weight_format, poison):
    weight = cpu.pack_weight([dense_tensor(normal(rng, 40, 96))], weight_format)
    x = normal(rng, 12, 96)
    clean = product(cpu, x, weight)
    x[5, 50] = poison
    out = product(cpu, x, weight)
    assert not np.isfinite(out[5]).any()
    assert np.delete(out, 5, axis=0).tobytes() == np.delete(clean, 5, axis=0).tobytes()


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("magnitude", [0.0, 1e-38, 1e-20, 1e20])
def test_extreme_inputs_stay_finite(cpu, rng, weight_format, magnitude):
    weight = cpu.pack_weight([dense_tensor(normal(rng, 40, 64))], weight_format)
    x = normal(rng, 3, 64) * np.float32(magnitude)
    out = product(cpu, x, weight)
    assert np.isfinite(out).all()
    if magnitude == 0.0:
        assert not out.any()
