"""``octavo bench serve`` against a server whose pace is known."""

import json

import pytest
from click.testing import CliRunner

from octavo.cli.bench import command
from octavo.cli.load import Answer, make_requests, percentiles, summarise
from octavo.errors import ConfigError
from server.running import RunningServer, running_server
from server.scripted import make_engine


@pytest.fixture(scope="module")
def paced():
    with running_server(make_engine(lambda prompt, choice: [ord("a")] * 100, step_seconds=0.004)) as server:
        yield server
        server.wait_until_idle()


def run(server: RunningServer, *arguments: str) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(command, ["serve", "--url", server.url, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_figures_follow_the_servers_pace(paced: RunningServer) -> None:
    arguments = ["--concurrency", "1,8", "--num-requests", "8", "--max-tokens", "12", "--json"]
    report = json.loads(run(paced, *arguments))
    assert report["model"] == "scripted" and [row["concurrency"] for row in report["rows"]] == [1, 8]
    for row in report["rows"]:
        assert row["requests"] == 8 and row["errors"] == {}
        assert row["tokens_per_s"] * row["seconds"] == pytest.approx(8 * 12, rel=0.01)
        assert row["inter_token_ms"]["p90"] >= 4 and row["ttft_ms"]["p50"] >= 4
        assert row["e2e_ms"]["p50"] >= row["ttft_ms"]["p50"] + 11 * 4
    assert report["rows"][1]["tokens_per_s"] > report["rows"][0]["tokens_per_s"]


def test_table_and_errors(paced: RunningServer) -> None:
    shown = run(paced, "--concurrency", "2", "--num-requests", "2", "--workload", "long", "--max-tokens", "600")
    assert "HTTP 400" in shown


def test_workloads(tmp_path) -> None:
    shared = make_requests("shared-prefix", 3, 5, seed=1)
    texts = [request["messages"][0]["content"] for request in shared]
    assert len({text[:1000] for text in texts}) == 1 and len(set(texts)) == 3
    assert make_requests("chat", 3, 5, seed=1) == make_requests("chat", 3, 5, seed=1)
    path = tmp_path / "trace.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}\n\n{"messages": []}\n')
    assert [request["max_tokens"] for request in make_requests(str(path), 3, 5, seed=0)] == [2, 5, 2]
    path.write_text("{")
    for wrong in (str(path), "nothing"):
        with pytest.raises(ConfigError, match="cannot be read"):
            make_requests(wrong, 1, 1, seed=0)


def test_summary_counts_errors_and_goodput() -> None:
    answers = [
        Answer(0, 0.0, "ab", [0.1, 0.2], 0.3, 2),
        Answer(1, 0.0, "ab", [2.0, 2.5], 3.0, 2),
        Answer(2, 0.0, "", [], 0.1, 0, "cut off"),
    ]
    summary = summarise(answers, 2.0, goodput_ttft_ms=1000)
    assert (summary["tokens_per_s"], summary["requests_per_s"], summary["goodput_requests_per_s"]) == (2.0, 1.0, 0.5)
    assert summary["errors"] == {"cut off": 1} and summary["ttft_ms"]["p99"] == 2000.0
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}
    assert percentiles([0.001 * value for value in range(1, 101)]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
