"""octavo bench machine, and octavo simulate with the step times that it wrote."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import octavo.engine.loading
import octavo.kernels.cpu
import octavo.models.model_files
from engine.tiny_engine import TinyModels
from octavo.cli.main import main
from octavo.engine import calibration
from octavo.engine.calibration import Shape
from octavo.kernels.cpu import MachineRates


@pytest.fixture(autouse=True)
def _tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a tiny model in every model's place, and a second's measurement aside."""
    parts = TinyModels().parts()
    monkeypatch.setattr(octavo.engine.loading, "load_parts", lambda config: parts)
    monkeypatch.setattr(octavo.models.model_files, "load_model_files", lambda model: SimpleNamespace(name=model))
    monkeypatch.setattr(octavo.engine.loading, "read_spec", lambda files: parts.spec)
    monkeypatch.setattr(octavo.kernels.cpu, "probe_machine", lambda num_threads: MachineRates(20.0, 100.0, 0.0, 300.0))
    monkeypatch.setattr(calibration, "SHAPES", (Shape(2, 20, 3, 1), Shape(3, 40, 4, 1)))


def test_machine_alone(capsys) -> None:
    assert main(["bench", "machine"]) == 0
    shown = capsys.readouterr().out
    assert "20.0 GB/s" in shown and "100.0 GFLOP/s" in shown and "no such instructions" in shown
    assert "step times" not in shown


def test_step_times_of_a_model(capsys) -> None:
    assert main(["bench", "machine", "tiny", "--rounds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "step times of tiny" in shown and "2 × 20" in shown and "3 × 40" in shown
    assert shown.splitlines()[-1].startswith("fitted to ")


def fitted_file(path: Path, capsys, *arguments: str) -> dict:
    """Measures, and returns what ``--json`` printed."""
    assert main(["bench", "machine", "tiny", "--rounds", "1", "--output", str(path), "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_simulate_reports_the_error_of_the_step_times(tmp_path: Path, capsys) -> None:
    path = tmp_path / "rates.json"
    measured = fitted_file(path, capsys)
    assert measured["step_times"] == json.loads(path.read_text(encoding="utf-8"))
    command = ["simulate", "tiny", "--step-times", str(path), "--kv-memory", "1MiB", "--requests", "5", "--lengths", "alpaca"]
    assert main([*command, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["num_finished"] == 5
    assert report["step_time_error"]["step_ratio"] == measured["step_times"]["step_error_ratio"]
    assert report["step_time_error"]["run_ratio"] == max(map(abs, measured["step_times"]["run_errors"].values()))
    assert main(command) == 0
    assert "step times: fitted to " in capsys.readouterr().out


def test_a_roofline_says_that_it_is_not_fitted(capsys) -> None:
    assert main(["simulate", "--requests", "5", "--lengths", "alpaca"]) == 0
    assert "step times: a roofline, not fitted" in capsys.readouterr().out
    assert main(["simulate", "--requests", "5", "--lengths", "alpaca", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["step_time_error"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "--tflops", "1"], "tflops contradict"),
        (["tiny", "--machine", "this"], "machine contradict"),
        (["tiny", "--weight-bits", "8"], "weight_bits contradict"),
        (["tiny", "--kv-dtype", "int8"], "not of tiny with int8 KV"),
        (["other"], "not of other with bf16 KV"),
        ([], "not of opt-13b"),
    ],
)
def test_step_times_of_something_else_are_refused(tmp_path: Path, capsys, arguments: list[str], message: str) -> None:
    path = tmp_path / "rates.json"
    fitted_file(path, capsys)
    assert main(["simulate", *arguments, "--step-times", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_an_output_needs_a_model(capsys) -> None:
    assert main(["bench", "machine", "--output", "x.json"]) == 2
    assert "name one" in capsys.readouterr().err
