from collections.abc import Iterator

import pytest

from server.running import RunningServer, running_server


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def server(shared_server: RunningServer) -> Iterator[RunningServer]:
    """A server on a scripted engine with the default settings; the test must leave nothing in it."""
    yield shared_server
    shared_server.wait_until_idle()
