"""``/metrics`` in Prometheus' form.

Owns: names, kinds and buckets; counts of finished requests. Must not know: the engine's inside; it reads `EngineStats`.

The names are those of vLLM's dashboards with the prefix ``octavo:``, and some of our own.

Invariants:
1. Counters never fall. Those of the engine are taken from its own counters, so nothing is counted twice.
2. Tokens computed again after a preemption are neither prompt tokens, nor generated ones, nor prefix hits.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from octavo.outputs import RequestOutput
from octavo.server.disk_metrics import disk_counters, disk_gauges

if TYPE_CHECKING:
    from octavo.engine.memory_guard import GuardStats
    from octavo.engine.stats import EngineStats

PREFIX = "octavo:"
# Seconds. Tokens of small models come within milliseconds, long prompts on a processor within minutes.
TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)

_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Time from arrival to the first token.", REQUEST_BUCKETS),
    "e2e_request_latency_seconds": ("Time from arrival to the last token.", REQUEST_BUCKETS),
    "request_queue_time_seconds": ("Time from arrival to the first step that computed something.", REQUEST_BUCKETS),
    "request_prefill_time_seconds": ("Time from the first step to the first token.", REQUEST_BUCKETS),
    "request_decode_time_seconds": ("Time from the first token to the last.", REQUEST_BUCKETS),
}


class TokenIntervals:
    """The histogram of the times between tokens: the only one that is fed with every token, too often for one that takes locks."""

    def __init__(self) -> None:
        self._counts = [0] * (len(TOKEN_BUCKETS) + 1)  # the last one: above all bounds
        self._sum = 0.0

    def observe(self, seconds: Iterable[float]) -> None:
        """Counts some times."""
        for value in seconds:
            self._counts[bisect_left(TOKEN_BUCKETS, value)] += 1
            self._sum += value

    def family(self, labels: Mapping[str, str]) -> HistogramMetricFamily:
        """Returns it as Prometheus wants it: each count with those of all lower buckets."""
        family = HistogramMetricFamily(
            PREFIX + "inter_token_latency_seconds", "Time between two tokens of a choice.", labels=list(labels)
        )
        bounds = [*map(floatToGoString, TOKEN_BUCKETS), "+Inf"]
        family.add_metric(list(labels.values()), list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        return family


class ServerMetrics(Collector):
    """All metrics of one server, in a registry of their own."""

    def __init__(self, model_name: str):
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model_name}
        self._stats: EngineStats | None = None
        self._token_intervals = TokenIntervals()
        self._histograms = {}
        for name, (text, buckets) in _HISTOGRAMS.items():
            histogram = Histogram(PREFIX + name, text, ["model_name"], registry=self._registry, buckets=buckets)
            self._histograms[name] = histogram.labels(**self._labels)
        self._registry.register(self)

    def render(self, stats: "EngineStats | None") -> bytes:
        """Returns the text of all metrics.

        Args:
            stats: the engine's figures; None shows the last known ones.
        """
        self._stats = stats or self._stats
        return generate_latest(self._registry)

    def observe_token_intervals(self, seconds: list[float]) -> None:
        """Counts times between tokens."""
        self._token_intervals.observe(seconds)

    def observe_finished(self, result: RequestOutput) -> None:
        """Counts the times of a finished request; an aborted one has not all of them."""
        metrics = result.metrics
        started, first, finished = metrics.first_scheduled_time, metrics.first_token_time, metrics.finished_time
        self._observe("request_queue_time_seconds", metrics.arrival_time, started)
        self._observe("request_prefill_time_seconds", started, first)
        self._observe("time_to_first_token_seconds", metrics.arrival_time, first)
        self._observe("request_decode_time_seconds", first, finished)
        self._observe("e2e_request_latency_seconds", metrics.arrival_time, finished)

    def _observe(self, name: str, begin: float | None, end: float | None) -> None:
        if begin is not None and end is not None:
            self._histograms[name].observe(end - begin)

    def collect(self) -> Iterator[Metric]:
        """Yields the times between tokens and the engine's figures; called by the registry."""
        yield self._token_intervals.family(self._labels)
        if self._stats is None:
            return
        for name, text, value in [*_gauges(self._stats), *disk_gauges(self._stats.disk)]:
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
        for name, text, value in [*_counters(self._stats), *disk_counters(self._stats.disk)]:
            counter = CounterMetricFamily(PREFIX + name, text, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), value)
            yield counter
        yield from self._labelled_families(self._stats)

    def _labelled_families(self, stats: "EngineStats") -> Iterator[Metric]:
        model_name = self._labels["model_name"]
        finished = CounterMetricFamily(
            PREFIX + "request_success", "Choices by finish reason.", labels=["model_name", "finished_reason"]
        )
        for reason, count in stats.finished.items():
            finished.add_metric([model_name, reason], count)
        yield finished
        parts = CounterMetricFamily(PREFIX + "step_seconds", "Time in the parts of all steps.", labels=["model_name", "part"])
        for part in ("schedule", "execute", "update"):
            parts.add_metric([model_name, part], getattr(stats, f"{part}_seconds"))
        yield parts
        memory = GaugeMetricFamily(PREFIX + "memory_bytes", "Memory by kind.", labels=["model_name", "kind"])
        for kind, value in _bytes_by_kind(stats).items():
            memory.add_metric([model_name, kind], value)
        yield memory
        actions = CounterMetricFamily(
            PREFIX + "memory_actions", "What was done about the machine's memory.", labels=["model_name", "action"]
        )
        for action, count in ({} if stats.guard is None else stats.guard.actions).items():
            actions.add_metric([model_name, action], count)
        yield actions
        blocks = GaugeMetricFamily(PREFIX + "kv_blocks", "KV blocks by state.", labels=["model_name", "state"])
        for state in ("free", "cached", "used", "shared"):
            blocks.add_metric([model_name, state], getattr(stats.memory, f"num_{state}_blocks"))
        yield blocks


def _gauges(stats: "EngineStats") -> list[tuple[str, str, float]]:
    memory = stats.memory
    is_short = float(stats.guard is not None and stats.guard.is_short)
    wasted = 1 - memory.num_computed_slots / memory.num_allocated_slots if memory.num_allocated_slots else 0.0
    return [
        ("num_requests_running", "Sequences that run.", stats.num_running),
        ("num_requests_waiting", "Sequences that wait, preempted ones included.", stats.num_waiting),
        ("num_requests_preempted", "Sequences that wait because their blocks were taken back.", stats.num_preempted),
        (
            "kv_cache_usage_perc",
            "Share of KV blocks that sequences hold, 0 to 1.",
            memory.num_used_blocks / max(1, memory.num_blocks),
        ),
        ("kv_waste_ratio", "Share of the held blocks' slots that hold no token.", wasted),
        ("memory_is_short", "1 while the machine has less memory available than the reserve.", is_short),
        ("kv_saved_slots", "Slots that sequences would need besides if nothing were shared.", memory.num_saved_slots),
    ]


def _counters(stats: "EngineStats") -> list[tuple[str, str, float]]:
    memory = stats.memory
    return [
        ("prompt_tokens", "Prompt tokens of finished and aborted requests.", stats.num_prompt_tokens),
        ("generation_tokens", "Generated tokens of finished and aborted requests.", stats.num_generated_tokens),
        ("computed_tokens", "Tokens that went through the model, recomputed ones included.", stats.num_computed_tokens),
        ("prefix_cache_queries", "Tokens looked up in the prefix cache.", memory.num_query_tokens),
        ("prefix_cache_hits", "Tokens found in the prefix cache.", memory.num_hit_tokens),
        ("num_preemptions", "Times that blocks were taken back from a running sequence.", stats.num_preemptions),
        ("kv_evictions", "Cached blocks dropped to make room.", memory.num_evictions),
        ("kv_block_copies", "Blocks copied.", memory.num_copies),
        ("steps", "Steps computed.", stats.num_steps),
    ]


def _bytes_by_kind(stats: "EngineStats") -> dict[str, int]:
    guard, num_blocks_in_memory = stats.guard, stats.memory.num_cached_blocks + stats.memory.num_used_blocks
    return {
        "weights": stats.weights_bytes,
        "workspace": stats.workspace_bytes,
        "kv_in_use": num_blocks_in_memory * stats.kv_block_bytes,
        "kv_committed": stats.memory.num_committed_blocks * stats.kv_block_bytes,
        "kv_capacity": stats.memory.num_blocks * stats.kv_block_bytes,
        **({} if guard is None else _machine_bytes(guard)),
    }


def _machine_bytes(guard: "GuardStats") -> dict[str, int]:
    return {"budget": guard.budget_bytes, "reserve": guard.reserve_bytes, "available": guard.available_bytes}
