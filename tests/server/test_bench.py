"""``octavo bench serve`` against a server whose pace is known."""

import asyncio
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner

from octavo.cli.bench import command
from octavo.cli.load import Answer, Load, count_duplicates, make_requests, percentiles, run_load, summarise
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
        assert row["inter_token_ms"]["p99"] >= 4 and row["ttft_ms"]["p50"] >= 4
        assert row["e2e_ms"]["p50"] >= 12 * 4
    assert report["rows"][1]["tokens_per_s"] > report["rows"][0]["tokens_per_s"]


def test_no_row_finds_the_prompts_of_an_earlier_one_cached(paced: RunningServer) -> None:
    def hits() -> int:
        return paced.engine.stats().memory.num_hit_tokens

    before = hits()
    run(paced, "--concurrency", "1", "--num-requests", "3", "--max-tokens", "2", "--seed", "70")
    first = hits() - before
    run(paced, "--concurrency", "1,1", "--num-requests", "3", "--max-tokens", "2", "--seed", "80")
    assert hits() - before < 4 * (first + 3 * 20), "only the template's and the workload's first words are shared"
    before = hits()
    run(paced, "--concurrency", "1", "--num-requests", "3", "--max-tokens", "2", "--seed", "80")
    assert hits() - before > 3 * 60, "the same prompts would be found"


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_chart(paced: RunningServer, tmp_path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"load{suffix}"
    run(paced, "--concurrency", "1,2", "--num-requests", "2", "--max-tokens", "3", "--plot", str(path))
    assert path.read_bytes().startswith(b"<?xml" if suffix == ".svg" else b"\x89PNG")


def test_chart_of_another_kind_is_refused_before_the_work() -> None:
    result = CliRunner().invoke(command, ["serve", "--url", "http://127.0.0.1:9", "--plot", "load.gif"])
    assert isinstance(result.exception, ConfigError) and "load.gif" in str(result.exception)


def test_mixed_up_answers_are_seen() -> None:
    with running_server(make_engine(lambda prompt, choice: [ord("a")] * 100)) as server:
        shown = json.loads(run(server, "--concurrency", "2", "--num-requests", "5", "--max-tokens", "40", "--json"))["rows"][0]
        assert shown["duplicates"] == 4 and shown["errors"] == {}
    same, other = "s" * 32, "o" * 32
    answers = [Answer(0, 0.0, same, prompt="a"), Answer(1, 0.0, same, prompt="a"), Answer(2, 0.0, other, prompt="b")]
    assert count_duplicates(answers) == 0
    assert count_duplicates([*answers, Answer(3, 0.0, same, prompt="c"), Answer(4, 0.0, "short", prompt="d")]) == 1


def test_an_answer_that_ends_early_for_its_length_is_truncated(paced: RunningServer) -> None:
    load = Load(paced.url, "scripted", make_requests("chat", 1, 5, seed=0))
    load.requests[0]["max_tokens"] = 5
    (whole,) = asyncio.run(run_load(load, 1, lambda: None))
    assert whole.error == "" and whole.num_tokens == 5

    class Stingy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            chunk = {"choices": [{"delta": {"content": "abc"}, "finish_reason": "length"}], "usage": {"completion_tokens": 3}}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Stingy) as stingy:
        thread = threading.Thread(target=stingy.handle_request)
        thread.start()
        (cut,) = asyncio.run(run_load(replace(load, url=f"http://127.0.0.1:{stingy.server_port}"), 1, lambda: None))
        thread.join()
    assert cut.error == "truncated" and cut.text == "abc"


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
