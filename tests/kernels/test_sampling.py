"""sample, logprobs, chosen_ranks and the operations on logits before them."""

import numpy as np
import pytest

from octavo.kernels.reference import ReferenceOperations
from octavo.kernels.reference_sampling import log_softmax

REFERENCE = ReferenceOperations()
GREEDY = (0.0, 0.0, 1.0, 0.0)
LIMITS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.0, 5, 1.0, 0.0),
    (1.3, 40, 0.9, 0.0),
    (1.0, 0, 0.5, 0.0),
    (1.0, 0, 0.999, 0.0),
    (2.0, 0, 1e-9, 0.0),
    (1.0, 0, 0.0, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.0, 0, 1.0, 1.0),
    (0.8, 30, 0.8, 0.02),
    (1e6, 100, 0.9, 0.0),
]


def draw(operations, logits, parameters, *, seed=7, first_position=0, num_draws=200):
    """Returns ``num_draws`` tokens from one row at successive positions."""
    keys = np.array([[seed, 0, first_position + i] for i in range(num_draws)], np.uint64)
    out = np.full(num_draws, -1, np.int32)
    repeated = np.tile(np.array(parameters, np.float32), (num_draws, 1))
    operations.sample(logits[None], np.zeros(num_draws, np.int32), repeated, keys, out)
    return out


def random_logits(rng, size, scale=3.0):
    return (scale * rng.standard_normal(size)).astype(np.float32)


@pytest.mark.parametrize("parameters", LIMITS)
@pytest.mark.parametrize(("size", "scale"), [(3, 3.0), (50, 3.0), (1025, 3.0), (5000, 3.0), (50, 0.01), (5003, 0.01)])
def test_draws_what_the_reference_draws(cpu, rng, parameters, size, scale):
    logits = random_logits(rng, size, scale)
    np.testing.assert_array_equal(draw(cpu, logits, parameters), draw(REFERENCE, logits, parameters))


@pytest.mark.parametrize("parameters", LIMITS)
def test_ties_are_resolved_as_in_the_reference(cpu, rng, parameters):
    logits = rng.integers(-3, 4, 300).astype(np.float32)
    np.testing.assert_array_equal(draw(cpu, logits, parameters), draw(REFERENCE, logits, parameters))


@pytest.mark.parametrize("limits", [(0, 0.5, 0.0), (4, 1.0, 0.0), (0, 1.0, 0.9), (0, 1.0, 0.0)])
def test_equal_logits(cpu, limits):
    logits = np.zeros(8, np.float32)
    expected = {(0, 0.5, 0.0): 4, (4, 1.0, 0.0): 4}.get(limits, 8)
    assert set(draw(cpu, logits, (1.0, *limits))) == set(range(expected))


@pytest.mark.parametrize("top_k", [300, 301, 9_999_999])
def test_top_k_of_at_least_the_vocabulary_keeps_all(cpu, rng, top_k):
    logits = random_logits(rng, 300)
    np.testing.assert_array_equal(draw(cpu, logits, (1.0, top_k, 1.0, 0.0)), draw(cpu, logits, (1.0, 0, 1.0, 0.0)))


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 1000])
def test_greedy_takes_the_lowest_id_of_the_highest(cpu, rng, size):
    for _ in range(20):
        logits = rng.integers(-2, 3, size).astype(np.float32)
        assert draw(cpu, logits, GREEDY, num_draws=1)[0] == np.argmax(logits)


@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-30, 1e-45])
@pytest.mark.parametrize("limits", [(0, 1.0, 0.0), (5, 0.9, 0.0), (0, 0.5, 0.1)])
def test_tiny_temperatures_act_as_greedy(cpu, rng, temperature, limits):
    logits = 1000 * random_logits(rng, 500)
    assert set(draw(cpu, logits, (temperature, *limits))) == {int(np.argmax(logits))}


def test_huge_temperature_draws_uniformly(cpu, rng):
    counts = np.bincount(draw(cpu, random_logits(rng, 16), (1e30, 0, 1.0, 0.0), num_draws=16_000), minlength=16)
    chi_square = np.sum((counts - 1000.0) ** 2 / 1000.0)
    assert chi_square < 50  # 15 degrees of freedom: exceeded once in 90,000 seeds, and the seed is fixed


@pytest.mark.parametrize("parameters", [GREEDY, *LIMITS])
def test_masked_and_nan_logits_are_never_drawn(cpu, rng, parameters):
    logits = random_logits(rng, 777)
    allowed = rng.choice(777, 9, replace=False)
    poisoned = np.where(rng.random(777) < 0.5, np.float32(np.nan), np.float32(-np.inf))
    poisoned[allowed] = logits[allowed]
    assert set(draw(cpu, poisoned, parameters)) <= set(allowed)


@pytest.mark.parametrize("parameters", [GREEDY, (1.0, 0, 1.0, 0.0), (1.0, 3, 0.5, 0.1)])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_rows_without_a_finite_logit_yield_a_token_of_the_vocabulary(cpu, parameters, value):
    tokens = draw(cpu, np.full(100, value, np.float32), parameters, num_draws=5)
    assert np.all((tokens >= 0) & (tokens < 100))


def test_infinite_logit_is_drawn(cpu, rng):
    logits = random_logits(rng, 100)
    logits[63] = np.inf
    assert set(draw(cpu, logits, (1.0, 0, 1.0, 0.0))) == {63}


def test_draw_does_not_depend_on_neighbours_or_threads(cpu_by_num_threads, rng):
    logits = np.stack([random_logits(rng, 1003) for _ in range(7)])
    rows = np.array([6, 0, 3, 3, 5, 1, 2, 4, 0], np.int32)
    parameters = np.array([LIMITS[i] for i in range(9)], np.float32)
    keys = rng.integers(0, 2**64, (9, 3), np.uint64)
    expected = np.empty(9, np.int32)
    cpu_by_num_threads[1].sample(logits, rows, parameters, keys, expected)
    for cpu in cpu_by_num_threads.values():
        for i in rng.permutation(9):
            alone = np.empty(1, np.int32)
            cpu.sample(logits[rows[i]][None].copy(), np.zeros(1, np.int32), parameters[i : i + 1], keys[i : i + 1], alone)
            assert alone[0] == expected[i]


@pytest.mark.parametrize("num_top", [0, 1, 5, 20, 333])
def test_logprobs_agree_with_the_reference(cpu, rng, num_top):
    logits = np.stack([random_logits(rng, 333), rng.integers(-3, 3, 333).astype(np.float32)])
    rows, chosen = np.array([1, 0, 1], np.int32), np.array([5, 332, 0], np.int32)
    results = []
    for operations in (cpu, REFERENCE):
        ids, values = np.full((3, 1 + num_top), -1, np.int32), np.zeros((3, 1 + num_top), np.float32)
        operations.logprobs(logits, rows, chosen, ids, values)
        results.append((ids, values))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_top", [1, 3, 20, 100])
def test_logprobs_beside_an_infinite_logit_name_real_tokens(cpu, rng, num_top):
    logits = random_logits(rng, 100)[None]
    logits[0, 37] = np.inf
    ids, values = np.full((1, 1 + num_top), -1, np.int32), np.zeros((1, 1 + num_top), np.float32)
    cpu.logprobs(logits, np.zeros(1, np.int32), np.array([5], np.int32), ids, values)
    assert ids[0, 1:].tolist() == np.argsort(-logits[0], kind="stable")[:num_top].tolist()


def test_logprobs_of_masked_tokens_are_minus_infinity(cpu):
    logits = np.array([[0.0, -np.inf, np.nan, 1.0]], np.float32)
    ids, values = np.empty((1, 5), np.int32), np.empty((1, 5), np.float32)
    cpu.logprobs(logits, np.zeros(1, np.int32), np.array([1], np.int32), ids, values)
    np.testing.assert_array_equal(ids, [[1, 3, 0, 1, 2]])
    np.testing.assert_allclose(values[0, 1:3], log_softmax(np.array([1.0, 0.0])), rtol=1e-6)
    assert np.all(np.isneginf(values[0, [0, 3, 4]]))


def test_chosen_ranks(cpu, rng):
    logits = rng.integers(-5, 5, (3, 1001)).astype(np.float32)
    rows, chosen = np.array([2, 0, 1, 1], np.int32), np.array([0, 1000, 500, 3], np.int32)
    out, expected = np.empty(4, np.int32), np.empty(4, np.int32)
    cpu.chosen_ranks(logits, rows, chosen, out)
    REFERENCE.chosen_ranks(logits, rows, chosen, expected)
    np.testing.assert_array_equal(out, expected)


def test_adjust_logits(cpu, rng):
    logits = rng.standard_normal((4, 50)).astype(np.float32)
    logits[1, 3] = -np.inf
    rows, ids = np.array([1, 3, 1, 0], np.int32), np.array([3, 49, 4, 0], np.int32)
    repetition, additive = np.array([2, 1.5, 1, 0.5], np.float32), np.array([0, -1, 100, -np.inf], np.float32)
    expected = logits.copy()
    REFERENCE.adjust_logits(expected, rows, ids, repetition, additive)
    cpu.adjust_logits(logits, rows, ids, repetition, additive)
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 500])
def test_mask_logits(cpu, rng, vocab_size):
    logits = rng.standard_normal((3, vocab_size)).astype(np.float32)
    rows = np.array([2, 0], np.int32)
    bitmasks = rng.integers(-(2**31), 2**31, (2, (vocab_size + 31) // 32), np.int64).astype(np.int32)
    expected = logits.copy()
    REFERENCE.mask_logits(expected, rows, bitmasks)
    cpu.mask_logits(logits, rows, bitmasks)
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [("rows", [0, 2], "rows: expected 0 to 1, got 2"), ("rows", [-1, 0], "rows: expected 0 to 1, got -1")],
)
def test_refuses_ids_outside_the_arrays(cpu, name, values, message):
    out = np.empty(2, np.int32)
    with pytest.raises(ValueError, match=message):
        cpu.chosen_ranks(np.zeros((2, 9), np.float32), np.array(values, np.int32), np.zeros(2, np.int32), out)
