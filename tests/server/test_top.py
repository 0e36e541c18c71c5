"""``octavo top`` on a running server."""

import io
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from rich.console import Console

from octavo.cli.top import command, make_request_table, make_table, read_figures, read_requests
from octavo.errors import OctavoError
from server.running import RunningServer, running_server
from server.scripted import make_engine


def test_shows_a_servers_figures(server: RunningServer) -> None:
    before = read_figures(server.url, "none")
    server.complete(prompt="hello", max_tokens=10)
    after = read_figures(server.url, "none")
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(make_table(before, after, 2.0))
    assert "5.0 generated, 2.5 of prompts" in console.export_text()
    result = CliRunner(env={"COLUMNS": "120"}).invoke(command, ["--url", server.url, "--once", "--seconds", "0.1"])
    assert result.exit_code == 0, result.output
    assert "0 running, 0 waiting" in result.output and "KV blocks" in result.output


def test_lists_the_requests() -> None:
    with running_server(make_engine(step_seconds=0.005)) as server, ThreadPoolExecutor(1) as clients:
        body = {"prompt": "t" * 40, "n": 2, "temperature": 1, "max_tokens": 100, "ignore_eos": True, "request_id": "shown"}
        answer = clients.submit(server.complete, **body)
        while not any(choice["index"] == 1 for told in read_requests(server.url, "none") for choice in told["choices"]):
            time.sleep(0.005)
        console = Console(record=True, width=120, file=io.StringIO())
        console.print(make_request_table(read_requests(server.url, "none")))
        row = next(line for line in console.export_text().splitlines() if "shown" in line)
        assert "running" in row and int(row.split("│")[3]) > 2 * 40
        answer.result()
        assert read_requests(server.url, "none") == []
    many = make_request_table([{"request_id": "a", "choices": [], "prefix": {"num_hit_tokens": 0}}] * 25)
    assert many.row_count == 20 and many.title == "requests, the oldest 20 of 25"


def test_no_server_says_so() -> None:
    with pytest.raises(OctavoError, match="does not answer"):
        read_figures("http://127.0.0.1:9", "none")
