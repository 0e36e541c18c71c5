"""A simulation's results as one record.

Owns: the figures and how they follow from the counts. Must not know: how they are shown.
"""

from dataclasses import dataclass

from octavo.simulator.statistics import Durations, Statistics

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Spread:
    """Mean and quantiles in milliseconds; None where there were no values."""

    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True)
class Report:
    """The figures of a run.

    Attributes:
        elapsed_s: virtual time from the start to the end of the last answer.
        mean_running: sequences at once on one replica, over the time in which it computed.
        peak_running: most sequences at once on one replica.
        goodput_per_s: requests per second that reached their goals.
        hit_ratio: prompt tokens found in the prefix cache.
        split: shares of the memory while requests waited for it; None if none did when it was looked at.
        cost_per_million_tokens: of output, in the price's currency; None without a price or without output.
    """

    elapsed_s: float
    num_finished: int
    num_refused: int
    num_steps: int
    num_preemptions: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_recomputed_tokens: int
    num_moved_slots: int
    mean_running: float
    peak_running: int
    ttft: Spread
    tpot: Spread
    latency_per_token: Spread
    requests_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float
    hit_ratio: float
    split: dict[str, float] | None
    cost_per_million_tokens: float | None


def make_report(statistics: Statistics, elapsed_s: float, *, num_replicas: int = 1, price_per_hour: float | None = None) -> Report:
    """Returns the figures of a run that took ``elapsed_s`` of virtual time.

    Args:
        price_per_hour: of one replica.
    """
    cost = None
    if price_per_hour is not None and statistics.num_output_tokens:
        cost = price_per_hour * num_replicas * elapsed_s / 3600 / statistics.num_output_tokens * 1e6
    return Report(
        elapsed_s=elapsed_s,
        num_finished=statistics.num_finished,
        num_refused=statistics.num_refused,
        num_steps=statistics.num_steps,
        num_preemptions=statistics.num_preemptions,
        num_prompt_tokens=statistics.num_prompt_tokens,
        num_output_tokens=statistics.num_output_tokens,
        num_computed_tokens=statistics.num_computed_tokens,
        num_recomputed_tokens=statistics.num_recomputed_tokens,
        num_moved_slots=statistics.num_moved_slots,
        mean_running=_ratio(statistics.running_s, statistics.busy_s),
        peak_running=statistics.num_peak_running,
        ttft=_spread(statistics.ttft),
        tpot=_spread(statistics.tpot),
        latency_per_token=_spread(statistics.latency_per_token),
        requests_per_s=_ratio(statistics.num_finished, elapsed_s),
        output_tokens_per_s=_ratio(statistics.num_output_tokens, elapsed_s),
        goodput_per_s=_ratio(statistics.num_good, elapsed_s),
        hit_ratio=_ratio(statistics.num_hit_tokens, statistics.num_prompt_tokens),
        split=statistics.split.shares(),
        cost_per_million_tokens=cost,
    )


def _ratio(amount: float, whole: float) -> float:
    return amount / whole if whole else 0.0


def _spread(durations: Durations) -> Spread:
    values = (durations.mean_s(), *(durations.quantile_s(share) for share in QUANTILES))
    return Spread(*(None if value is None else 1e3 * value for value in values))
