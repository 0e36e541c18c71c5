"""``octavo compare --url A --url B``: two servers whose answers and pace are known."""

import json

import pytest
from click.testing import CliRunner

from octavo.cli.compare import command
from server.running import running_server
from server.scripted import make_engine

TEXT = [ord(letter) for letter in "the same words every time, " * 20]


def script(*, changed_at: int | None = None):
    """Returns an answer for every prompt, with one other letter at a position."""
    tokens = list(TEXT)
    if changed_at is not None:
        tokens[changed_at] = ord("Z")
    return lambda prompt, choice: tokens


@pytest.fixture(scope="module")
def servers():
    """Returns the addresses of two servers: the second is slower, and says something else at one place."""
    sizes = {"num_blocks": 512, "max_num_batched_tokens": 2048, "max_model_len": 2048}
    slow = make_engine(script(changed_at=7), step_seconds=0.004, **sizes)
    with running_server(make_engine(script(), **sizes)) as first, running_server(slow) as second:
        yield first.url, second.url


def compare(*arguments: str):
    return CliRunner(env={"COLUMNS": "200"}).invoke(command, list(arguments), catch_exceptions=False)


def test_two_servers_side_by_side(servers, tmp_path) -> None:
    first, second = servers
    page = tmp_path / "page.html"
    result = compare("--url", first, "--url", second, "--conversations", "4", "--html", str(page), "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["exact"] is False and (record["num_equal"], record["num_compared"]) == (0, 4)
    assert record["difference"]["position"] == 7
    assert record["difference"]["second"] == f"{second}: {'Z' + bytes(TEXT[8:31]).decode()!r}"
    fast, slow = record["runs"]
    assert [run["name"] for run in record["runs"]] == [first, second]
    assert slow["figures"]["gap"]["mean_ms"] >= 4 and slow["figures"]["slots"] is None
    assert fast["figures"]["answer_tokens_per_s"] > slow["figures"]["answer_tokens_per_s"]
    assert all(request["num_answer_tokens"] >= 16 for request in fast["requests"])
    assert "Two servers, the same conversations" in page.read_text() and "reading the prompt" not in page.read_text()


def test_a_server_agrees_with_itself(servers, tmp_path) -> None:
    first, _ = servers
    result = compare(
        "--url", first, "--url", f"{first}/", "--conversations", "3", "--concurrency", "1", "--html", str(tmp_path / "p.html")
    )
    assert "exact: yes (all 3 answers are the same in every run)" in result.stdout
    assert ["conversations", "at", "once,", "most", "1", "1"] in [line.split() for line in result.stdout.splitlines()]


def test_answers_that_fail_are_counted_and_not_compared(servers, tmp_path) -> None:
    first, second = servers
    arguments = ["unknown-model", "--url", first, "--url", second, "--conversations", "2", "--html", str(tmp_path / "p.html")]
    result = compare(*arguments)
    assert ["answers", "that", "failed", *["2", "×", "HTTP_404", "2", "×", "HTTP_404"]] in [
        line.replace("HTTP 4", "HTTP_4").split() for line in result.stdout.splitlines()
    ]
    assert "exact: no (0 of 0 answers" in result.stdout


def test_one_address_is_not_enough(servers, tmp_path) -> None:
    result = CliRunner().invoke(command, ["--url", servers[0], "--html", str(tmp_path / "p.html")])
    assert result.exit_code == 2 and "--url is given 1 times; two servers are compared" in result.output
