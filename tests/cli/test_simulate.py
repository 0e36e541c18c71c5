"""octavo simulate: the table and the JSON, the rates that an option replaces, and what is refused."""

import json
import sys

import pytest

from octavo.cli.main import main

SMALL = ["simulate", "--requests", "10", "--lengths", "alpaca"]


def reports(capsys, *arguments: str) -> list[dict]:
    """Returns what ``--json`` prints."""
    assert main([*SMALL, "--json", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == "", "progress belongs on a terminal only"
    return json.loads(captured.out)


def test_table_has_a_column_for_each_allocator(capsys) -> None:
    assert main([*SMALL, "--allocator", "paged", "--allocator", "oracle"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["paged", "oracle"]
    assert any(line.split() == ["requests", "finished", "/", "refused", "10", "/", "0", "10", "/", "0"] for line in lines)


def test_json_has_every_figure(capsys) -> None:
    first, second = reports(capsys, "--allocator", "paged", "--allocator", "maximum", "--price-per-hour", "2")
    assert (first["allocator"], second["allocator"]) == ("paged", "maximum")
    assert first["num_finished"] == second["num_finished"] == 10
    assert first["ttft"]["p50_ms"] > 0
    assert first["cost_per_million_tokens"] > 0


def test_rates_replace_the_machines(capsys) -> None:
    (plain,) = reports(capsys)
    (slow,) = reports(capsys, "--bandwidth-gb-per-s", "100")
    (held_up,) = reports(capsys, "--step-overhead-ms", "500")
    assert slow["tpot"]["mean_ms"] > 5 * plain["tpot"]["mean_ms"]
    assert held_up["tpot"]["mean_ms"] > 500


def test_trace_is_served_and_what_is_too_long_is_refused(capsys, tmp_path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"arrival_s": 0, "prompt_tokens": 9, "output_tokens": 4}, {"arrival_s": 1, "prompt_tokens": 4000, "output_tokens": 4}]
    trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (report,) = reports(capsys, "--trace", str(trace))
    assert (report["num_finished"], report["num_refused"], report["num_output_tokens"]) == (1, 1, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "rate=0.0"),
        (["--weight-bits", "4"], "16 bits only"),
        (["--kv-memory", "much"], "kv_memory='much'"),
        (["--trace", "no-such-file"], "no-such-file"),
        (["--tflops", "nan"], "not a finite number"),
        (["--replicas", "1025"], "replicas=1025"),
        (["--max-num-seqs", "65537"], "max_num_seqs=65537"),
        (["--kv-memory", "1000000GiB"], "more than the 4194304"),
        (["--max-model-len", "2049"], "more than the model's 2048"),
        (["--step-overhead-ms", "inf"], "not a finite number"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], message: str, capsys) -> None:
    assert main([*SMALL, *arguments]) != 0
    error = capsys.readouterr().err.splitlines()
    assert message in error[0]
    assert len(error) <= 2


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot_is_written(capsys, tmp_path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"chart.{suffix}"
    assert main([*SMALL, "--allocator", "paged", "--allocator", "oracle", "--plot", str(path)]) == 0
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        shown = data.decode()
        assert all(f"<!-- {word} -->" in shown for word in ("paged", "oracle", "time to first token, s", "hold a token"))


def test_a_charts_name_is_checked_before_the_work(capsys, tmp_path) -> None:
    assert main(["simulate", "--requests", "1000000", "--plot", str(tmp_path / "chart.gif")]) == 2
    assert "ends in neither" in capsys.readouterr().err


def test_no_chart_without_its_library(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*SMALL, "--plot", str(tmp_path / "chart.svg")]) == 2
    assert "octavo[plot]" in capsys.readouterr().err
