"""octavo.cli.plan: what is printed, as tables and as JSON, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import main
from octavo.planner.shipped_models import shipped_models

ON_SPARK = ("--machine", "dgx-spark")


def plan_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main(["plan", *arguments, *ON_SPARK, "--json"])
    return json.loads(capsys.readouterr().out)


def test_tables_say_what_binds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt-oss-120b", *ON_SPARK]) == 0
    shown = capsys.readouterr().out
    for text in ("121.69", "60.77", "36,864", "speed", "unslothai/unsloth", "does not run this model"):
        assert text in shown


def test_json_holds_the_figures_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_json(capsys, "gpt-oss-120b", "--context", "131072", "--users", "2")
    assert plan["weights"]["total_bytes"] == 65_248_815_744
    assert plan["machine"]["total_bytes"] == 130_663_006_208
    assert plan["kv"]["bytes_per_token"] == 73_728
    assert (plan["asked"]["users_by_memory"], plan["fits"]) == (8, True)


def test_what_does_not_fit_is_explained_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3.1-70b", *ON_SPARK, "--context", "8192"]) == 1
    shown = capsys.readouterr().out
    assert "does not fit: weights 131.42 GiB" in shown
    assert "--weights" in shown


def test_config_file_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(shipped_models()["gemma-3-27b"].config))
    assert plan_json(capsys, str(path), "--kv-dtype", "fp8")["kv"]["bytes_per_token"] == 507_904 // 2


def test_weights_and_memory_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_json(capsys, "llama-3.1-8b", "--weight-bytes", "5GB", "--memory", "16GiB")
    assert plan["weights"]["total_bytes"] == 5 * 10**9
    assert plan["budget"]["usable_bytes"] == 16 * 2**30


def test_known_names_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--list"]) == 0
    shown = capsys.readouterr().out
    assert "gpt-oss-120b" in shown and "litgpt" in shown and "strix-halo" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "neither a file"),
        (["llama-3.1-8b", "--memory", "128GiB"], "more than the 115.70 GiB available"),
        (["llama-3.1-8b", "--context", "200000"], "more than the model's 131072"),
        (["llama-3.1-8b", "--kv-dtype", "fp3"], "kv_dtype='fp3'"),
        (["llama-3.1-8b", "--weights", "q9"], "weights='q9'"),
        (["llama-3.1-8b", "--weights", "fp8", "--weight-bytes", "1GB"], "contradict"),
        (["llama-3.1-8b", "--plot", "chart.gif"], "ends in neither"),
        (["llama-3.1-8b", "--min-speed", "nan"], "not a finite number"),
        (["llama-3.1-8b", "--min-speed", "inf"], "not a finite number"),
        (["llama-3.1-8b", "--users", "0"], "--users"),
        (["llama-3.1-8b", "--users", "65537"], "--users"),
        (["llama-3.1-8b", "--weight-bytes", "0"], "a model has weights"),
        (["llama-3.1-8b", "--shared-prefix", "300", "--context", "200"], "shared_prefix=300"),
        (["llama-3.1-8b", "--shared-prefix", "200000"], "shared_prefix=200000"),
        ([], "which model?"),
    ],
)
def test_wrong_use_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments, *ON_SPARK]) == 2
    assert message in capsys.readouterr().err


def test_unknown_architecture_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "hyena"}')
    assert main(["plan", str(path), *ON_SPARK]) == 1
    assert "'hyena' is not known" in capsys.readouterr().err


def test_chart_without_its_library_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["plan", "llama-3.1-8b", *ON_SPARK, "--plot", str(tmp_path / "chart.svg")]) == 2
    assert "octavo[plot]" in capsys.readouterr().err


def test_chart_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["plan", "llama-3.1-8b", *ON_SPARK, "--plot", str(tmp_path / "chart.svg")]) == 0
    assert "<svg" in (tmp_path / "chart.svg").read_text()
