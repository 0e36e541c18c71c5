"""What `benchmarks/compare.py` understands of the engines that it runs beside Octavo."""

import json
import sys
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NOISE = "loading…\nthe result: none yet\n"


@pytest.fixture(autouse=True)
def _import_from_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def task():
    """A task of two prompts, of which the second is to be answered alone too."""
    from peers.protocol import Task

    return Task("model", prompts=[[1, 2], [3]], output_tokens=[2, 1], alone=[1], num_threads=1, options={})


def test_a_result_is_found_among_what_the_engine_prints(task, monkeypatch, capsys) -> None:
    from peers.protocol import read_result, run

    def load(given):
        print(NOISE, end="")
        assert given == task
        return lambda prompts, lengths: [[prompt[0]] * length for prompt, length in zip(prompts, lengths, strict=True)]

    monkeypatch.setattr(sys, "stdin", StringIO(json.dumps(asdict(task))))
    run("1.2", load)
    print(NOISE + "freed 3 buffers")
    result = read_result(capsys.readouterr().out)
    assert (result.version, result.answers, result.alone) == ("1.2", [[1, 1], [3]], [[3]])
    assert result.ready_s > 0 and result.elapsed_s >= 0


@pytest.mark.parametrize("output", ["", NOISE])
def test_output_without_a_result_is_an_error(output) -> None:
    from peers.protocol import read_result

    with pytest.raises(RuntimeError, match="printed no result"):
        read_result(output)


@pytest.mark.parametrize(("status", "reason"), [(3, "Tiny, bf16 failed on W1:\nno memory"), (0, "printed no result")])
def test_an_engine_that_ends_before_its_result_has_failed(tmp_path, status, reason) -> None:
    from compare import Contestant
    from workloads import one_request

    script = tmp_path / "engine.py"
    script.write_text(f"import sys; print('loading'); sys.stderr.write('no memory'); sys.exit({status})")
    contestant = Contestant("Tiny", "bf16", str(script), sys.executable, "model", {}, {})
    with pytest.raises(RuntimeError, match=reason):
        contestant.run(one_request(1000), alone=[], num_threads=1)
