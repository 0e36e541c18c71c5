"""octavo.simulator.step_time and statistics: the roofline's arithmetic, and quantiles from buckets."""

import random

import pytest

from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.sequence import Sequence
from octavo.simulator.statistics import Durations, Goals
from octavo.simulator.step_time import OPT_13B, MachineRates, ModelCosts, Roofline

MODEL = ModelCosts(1000, 2000, 8, (None, None, 4), 5, 128, None)


def batch(*entries: tuple[int, int]) -> ScheduledBatch:
    """Returns a batch of sequences, each with its computed and its scheduled tokens."""
    scheduled = ScheduledBatch()
    for index, (start, num_tokens) in enumerate(entries):
        scheduled.add(Sequence(index, [7] * (start + num_tokens), 128), start, num_tokens)
    return scheduled


def test_reading_counts_weights_once_and_each_context() -> None:
    reads_one_byte_a_second = Roofline(MODEL, MachineRates(1, 1e30))
    # Full layers see 10 and 3 tokens, the windowed one 4 and 3.
    assert reads_one_byte_a_second.seconds(batch((9, 1), (0, 3))) == 2000 + 8 * (2 * (10 + 3) + 4 + 3)


def test_arithmetic_counts_every_token() -> None:
    computes_one_flop_a_second = Roofline(MODEL, MachineRates(1e30, 1))
    assert computes_one_flop_a_second.seconds(batch((9, 1), (0, 3))) == 2 * 1000 * 4 + 4 * 5 * (2 * (10 + 9) + 4 + 9)


def test_the_slower_of_the_two_decides_and_overheads_are_added() -> None:
    reading, computing = Roofline(MODEL, MachineRates(1, 1e30)), Roofline(MODEL, MachineRates(1e30, 1))
    both = Roofline(MODEL, MachineRates(1, 1, step_overhead_s=7, sequence_overhead_s=0.5))
    step = batch((9, 1), (0, 3))
    assert both.seconds(step) == max(reading.seconds(step), computing.seconds(step)) + 8


def test_moved_slots_are_read_and_written() -> None:
    step_time = Roofline(MODEL, MachineRates(1, 1e30))
    assert step_time.seconds(batch((9, 1)), 10) - step_time.seconds(batch((9, 1))) == 2 * 10 * 3 * 8


def test_the_papers_model_keeps_the_papers_bytes() -> None:
    assert OPT_13B.kv_bytes_per_token == 819_200


def test_quantiles_are_within_one_percent() -> None:
    source = random.Random(0)
    values = sorted(source.lognormvariate(0, 2) for _ in range(10_000))
    durations = Durations()
    for value in values:
        durations.add(value)
    for share in (0.5, 0.9, 0.99):
        assert durations.quantile_s(share) == pytest.approx(values[round(share * len(values)) - 1], rel=0.0101)
    assert durations.mean_s() == pytest.approx(sum(values) / len(values))


def test_no_durations_have_no_figures() -> None:
    assert (Durations().mean_s(), Durations().quantile_s(0.5)) == (None, None)


def test_zero_is_a_duration() -> None:
    durations = Durations()
    durations.add(0.0)
    assert durations.mean_s() == 0.0
    assert durations.quantile_s(0.5) == pytest.approx(0, abs=1e-8)


def test_goals() -> None:
    assert Goals().reached(1e9, 1e9)
    assert Goals(1.0, 2.0).reached(1.0, 2.0)
    assert not Goals(1.0, 2.0).reached(1.1, 2.0)
    assert not Goals(1.0, 2.0).reached(1.0, 2.1)
    assert Goals(1.0, 2.0).reached(1.0, None)
