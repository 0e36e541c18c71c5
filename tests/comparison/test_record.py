"""octavo.comparison.record: figures follow from what was noted."""

import pytest

from octavo.comparison.record import MAX_MOMENTS, Moment, RequestTimes, Slots, make_figures, make_spread, thin_moments

REQUESTS = (
    RequestTimes(arrived=0.0, started=0.0, first_token=1.0, finished=5.0, num_prompt_tokens=7, num_answer_tokens=5),
    RequestTimes(arrived=1.0, started=2.0, first_token=4.0, finished=10.0, num_prompt_tokens=7, num_answer_tokens=3),
    RequestTimes(arrived=0.0, started=None, first_token=None, finished=None, num_prompt_tokens=7, num_answer_tokens=0),  # failed
)
MOMENTS = (
    Moment(0.0, 1, 2, Slots(0.2, 0.1, 0.3, 0.4)),
    Moment(2.0, 2, 0, Slots(0.5, 0.1, 0.1, 0.3)),
    Moment(6.0, 1, 0, Slots(0.1, 0.1, 0.1, 0.7)),
)


def test_figures() -> None:
    figures = make_figures(REQUESTS, MOMENTS, 10.0)
    assert figures.peak_running == 2
    assert figures.mean_running == pytest.approx((1 * 2 + 2 * 4 + 1 * 4) / 10)
    assert figures.queue.mean_ms == 500.0
    assert (figures.ttft.mean_ms, figures.ttft.p50_ms, figures.ttft.p99_ms) == (2000.0, 1000.0, 3000.0)
    assert figures.gap.mean_ms == pytest.approx(1e3 * (4 / 4 + 6 / 2) / 2)
    assert figures.answer_tokens_per_s == pytest.approx(0.8)
    assert figures.slots == Slots(0.5, 0.1, 0.1, 0.3)


def test_figures_without_moments_or_answers() -> None:
    figures = make_figures(REQUESTS[2:], (), 1.0)
    assert (figures.peak_running, figures.queue, figures.ttft, figures.gap, figures.slots) == (0, None, None, None, None)


def test_percentiles_are_times_that_occurred() -> None:
    spread = make_spread([0.001 * value for value in range(1, 201)])
    assert (spread.p50_ms, spread.p99_ms) == (pytest.approx(100), pytest.approx(198))


@pytest.mark.parametrize("count", [0, 1, MAX_MOMENTS, MAX_MOMENTS + 1, 5 * MAX_MOMENTS])
def test_thinning_keeps_both_ends(count: int) -> None:
    moments = [Moment(float(index), 1, 0, None) for index in range(count)]
    kept = thin_moments(moments)
    assert len(kept) == min(count, MAX_MOMENTS)
    assert kept[:1] == tuple(moments[:1]) and kept[-1:] == tuple(moments[-1:])
