"""``octavo top`` on a running server."""

import io

import pytest
from click.testing import CliRunner
from rich.console import Console

from octavo.cli.top import command, make_table, read_figures
from octavo.errors import OctavoError
from server.running import RunningServer


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


def test_no_server_says_so() -> None:
    with pytest.raises(OctavoError, match="does not answer"):
        read_figures("http://127.0.0.1:9", "none")
