"""The served OpenAPI document describes the server: what it says is what requests made from it get."""

import os
import time
from collections.abc import Iterator

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from octavo.server.app import make_api
from server.running import RunningServer, running_server
from server.scripted import make_engine

NUM_EXAMPLES = 60  # per operation and round
SCHEMA_SECONDS = float(os.environ.get("OCTAVO_SCHEMA_SECONDS", "0"))  # one round at least; a nightly run goes on for minutes
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = {"/octavo/events", "/metrics"}  # a stream that only its reader ends; a text that another test parses


def test_requests_made_from_the_schema() -> None:
    with running_server(make_engine(max_model_len=128)) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        operations = [result.ok() for result in schema.get_all_operations()]
        assert len(operations) >= 12
        deadline = time.monotonic() + SCHEMA_SECONDS
        for _ in repeat_until(deadline):
            for operation in operations:
                if operation.path not in ENDLESS:
                    check_operation(operation, server)
        server.wait_until_idle()


def test_document_promises_no_answer_that_is_never_sent() -> None:
    document = make_api().openapi()
    statuses = {status for path in document["paths"].values() for operation in path.values() for status in operation["responses"]}
    assert statuses == {"200", "400", "401", "404", "413", "429", "500", "503"}
    assert not {"HTTPValidationError", "ValidationError"} & set(document["components"]["schemas"])


def test_document_says_nothing_of_the_events_of_a_stream() -> None:
    """Readers of the document take a stream's schema for that of one event, or for that of its whole text: neither is safe."""
    paths = make_api().openapi()["paths"].values()
    contents = [operation["responses"]["200"].get("content", {}) for path in paths for operation in path.values()]
    streams = [content["text/event-stream"] for content in contents if "text/event-stream" in content]
    assert len(streams) >= 5
    assert not any(streams)


def repeat_until(deadline: float) -> Iterator[None]:
    """Yields once, and again as long as there is time."""
    yield
    while time.monotonic() < deadline:
        yield


def check_operation(operation, server: RunningServer) -> None:
    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        database=None,
        derandomize=not SCHEMA_SECONDS,  # the short run tries the same requests every time; the nightly one looks for new ones
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def run(case) -> None:
        response = case.call(base_url=server.url, timeout=20)
        case.validate_response(response, checks=CHECKS)

    run()
