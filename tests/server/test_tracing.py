"""Traces: spans of requests, to a collector in memory."""

import builtins
from itertools import pairwise

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from octavo.errors import ConfigError
from octavo.server.tracing import RequestTracer, make_tracer
from server.running import running_server
from server.scripted import make_engine


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What servers of this test send their spans to."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(
        "octavo.server.app.make_tracer", lambda endpoint, name: endpoint and RequestTracer(SimpleSpanProcessor(exporter), name)
    )
    return exporter


def spans_of(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """Returns the only request's span and its children in order."""
    spans = exporter.get_finished_spans()
    (root,) = [span for span in spans if span.parent is None]
    children = sorted((span for span in spans if span is not root), key=lambda span: span.start_time)
    assert all(child.parent.span_id == root.context.span_id for child in children)
    assert all(first.end_time == pytest.approx(second.start_time, abs=1e6) for first, second in pairwise(children))
    assert root.start_time == pytest.approx(children[0].start_time, abs=1e6)
    assert root.end_time == pytest.approx(children[-1].end_time, abs=1e6)
    return root, children


def test_a_request_has_a_span_for_each_of_its_times(exporter: InMemorySpanExporter) -> None:
    with running_server(make_engine(step_seconds=0.01), otlp_endpoint="http://collector") as server:
        server.complete(prompt="secret", max_tokens=5, ignore_eos=True, request_id="traced")
    root, children = spans_of(exporter)
    assert [child.name for child in children] == ["queue", "prefill", "decode"]
    assert children[2].end_time - children[2].start_time >= 4 * 10_000_000
    assert dict(root.attributes) == {
        "gen_ai.request.model": "scripted",
        "gen_ai.response.id": "traced",
        "gen_ai.usage.input_tokens": 6,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ("length",),
        "octavo.prefix_hit_tokens": 0,
        "octavo.preemptions": 0,
    }
    assert "secret" not in root.to_json()


def test_an_aborted_request_has_the_spans_that_it_got_to(exporter: InMemorySpanExporter) -> None:
    engine = make_engine(step_seconds=0.5)
    with running_server(engine, otlp_endpoint="http://collector", max_request_seconds=1) as server:
        server.complete(prompt="x" * 300, max_tokens=5)
    root, children = spans_of(exporter)
    assert [child.name for child in children] == ["queue", "prefill"]
    assert root.attributes["gen_ai.response.finish_reasons"] == ("abort",)


def test_nothing_is_traced_unless_asked_for(exporter: InMemorySpanExporter) -> None:
    with running_server() as server:
        server.complete(prompt="a", max_tokens=1)
    assert exporter.get_finished_spans() == ()
    assert make_tracer(None, "m") is None


def test_without_the_extra_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_exporter(name: str, *arguments, **options):
        if name.startswith("opentelemetry.exporter"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_exporter)
    with pytest.raises(ConfigError, match="needs OpenTelemetry") as raised:
        make_tracer("http://collector", "m")
    assert raised.value.hint == "pip install 'octavo[otel]'"
