"""OpenTelemetry traces: one span per request, with children for its time in the queue, the prompt and the answer.

Owns: the spans' names and attributes, and where they go. Must not know: the engine; it reads a request's metrics. OpenTelemetry
is an extra: nothing is imported, and nothing done, unless ``otlp_endpoint`` is set.

Invariants:
1. Spans hold no prompt and no answer.
2. The children follow each other without a gap, and their parent covers them.
"""

import time
from typing import TYPE_CHECKING

from octavo.errors import ConfigError
from octavo.outputs import RequestOutput

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

TRACES_PATH = "/v1/traces"  # of a collector that takes OTLP over HTTP


class RequestTracer:
    """Makes the spans of requests that ended.

    Args:
        processor: what takes them.
        model_name: the served model's.
    """

    def __init__(self, processor: "SpanProcessor", model_name: str):
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._provider = TracerProvider(resource=Resource.create({"service.name": "octavo"}), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("octavo")
        self._model_name = model_name

    def trace(self, result: RequestOutput) -> None:
        """Makes the spans of a request; one that was aborted has those that it got to, up to now."""
        from opentelemetry.trace import set_span_in_context

        metrics = result.metrics
        end = metrics.finished_time or time.monotonic()
        root = self._tracer.start_span("request", start_time=_wall_ns(metrics.arrival_time), attributes=self._describe(result))
        parent = set_span_in_context(root)
        begins = {"queue": metrics.arrival_time, "prefill": metrics.first_scheduled_time, "decode": metrics.first_token_time}
        reached = [(name, begin) for name, begin in begins.items() if begin is not None]
        ends = [begin for _, begin in reached[1:]] + [end]
        for (name, begin), its_end in zip(reached, ends, strict=True):
            self._tracer.start_span(name, context=parent, start_time=_wall_ns(begin)).end(_wall_ns(its_end))
        root.end(_wall_ns(end))

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()

    def _describe(self, result: RequestOutput) -> dict[str, str | int | list[str]]:
        """Returns a request's attributes, named as OpenTelemetry's conventions for language models have it where they do."""
        return {
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.id": result.request_id,
            "gen_ai.usage.input_tokens": len(result.prompt_token_ids),
            "gen_ai.usage.output_tokens": sum(len(output.token_ids) for output in result.outputs),
            "gen_ai.response.finish_reasons": [output.finish_reason or "abort" for output in result.outputs],
            "octavo.prefix_hit_tokens": result.num_prefix_hit_tokens,
            "octavo.preemptions": result.metrics.num_preemptions,
        }


def _wall_ns(monotonic_seconds: float) -> int:
    return time.time_ns() - int(1e9 * (time.monotonic() - monotonic_seconds))


def make_tracer(endpoint: str | None, model_name: str) -> RequestTracer | None:
    """Returns what traces requests to a collector; None without an endpoint.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as cause:
        hint = "pip install 'octavo[otel]'"
        raise ConfigError(f"otlp_endpoint={endpoint!r} needs OpenTelemetry, which is not installed", hint=hint) from cause
    return RequestTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint.rstrip("/") + TRACES_PATH)), model_name)
