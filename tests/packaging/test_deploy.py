"""What `deploy/` holds fits the program: options, paths, metrics."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from octavo.cli.serve import command as serve_command
from octavo.sampling_params import SamplingParams
from octavo.server.app import make_api
from octavo.server.config import ServerConfig
from octavo.server.metrics import ServerMetrics
from server.scripted import make_engine

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def sample_names() -> set[str]:
    """The names of all samples that a server shows which has answered something."""
    engine = make_engine()
    engine.add_request("hello", SamplingParams(max_tokens=2), request_id="r")
    while engine.has_unfinished_requests:
        engine.step()
    metrics = ServerMetrics("scripted")
    metrics.observe_finished(engine.take("r"))
    families = text_string_to_metric_families(metrics.render(engine.stats()).decode())
    return {sample.name for family in families for sample in family.samples}


def dashboard() -> dict:
    return json.loads((DEPLOY / "grafana" / "octavo.json").read_text(encoding="utf-8"))


def test_dashboard_asks_only_for_metrics_that_exist(sample_names: set[str]) -> None:
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in dashboard()["templating"]["list"]]
    named = {name for expression in expressions for name in re.findall(r"octavo:\w+", expression)}
    assert len(named) > 15 and not named - sample_names


def test_dashboard_panels_are_laid_out_without_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (row, column)
        for place in (panel["gridPos"] for panel in panels)
        for row in range(place["y"], place["y"] + place["h"])
        for column in range(place["x"], place["x"] + place["w"])
    ]
    assert len(cells) == len(set(cells)) and all(column < 24 for _, column in cells)
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"] and all(target["legendFormat"] for target in panel["targets"])


def test_prometheus_reads_a_path_that_is_served() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert job["metrics_path"] in make_api().openapi()["paths"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]


def served_options(command_line: list[str]) -> None:
    """Checks that `octavo serve` takes a command line's options."""
    name, *arguments = command_line
    assert name == "serve"
    serve_command.make_context("serve", arguments)  # raises on an option that there is not


def test_systemd_unit_starts_the_server() -> None:
    unit = configparser.ConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((DEPLOY / "octavo.service").read_text(encoding="utf-8"))
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "octavo"
    served_options(arguments)
    drain_seconds = ServerConfig().drain_seconds
    assert int(unit["Service"]["TimeoutStopSec"]) > drain_seconds


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "octavo.service").read_text(encoding="utf-8")
    unit = tmp_path / "octavo.service"
    unit.write_text(text.replace("/opt/octavo/bin/octavo", "/bin/true").replace("User=octavo\n", ""), encoding="utf-8")
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_container_leaves_out_what_was_built_here() -> None:
    lines = (DEPLOY.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".git", ".venv*", "build", "**/*.so"} <= set(lines)


def test_container_file_starts_the_server() -> None:
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines()
    commands = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    assert json.loads(commands["ENTRYPOINT"]) == ["/opt/octavo/bin/octavo"]
    served_options(json.loads(commands["CMD"]))
