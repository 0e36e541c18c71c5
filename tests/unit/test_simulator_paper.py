"""benchmarks/paper.py: the reserving systems come out as in the paper, and what is far off is explained or said to be unknown."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch):
    """Returns the module of the benchmark."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import paper

    return paper


def test_reserve_maximum_splits_memory_as_in_figure_2(paper) -> None:
    report = paper.run("sharegpt", "maximum", 100, 0)
    for kind, share in paper.SPLITS["maximum"].items():
        assert 100 * report.split[kind] == pytest.approx(share, rel=paper.FAR_OFF_RATIO)
    assert report.peak_running == paper.RUNNING["sharegpt"]["maximum"]


def test_difference_is_relative_to_the_paper(paper) -> None:
    assert paper.Line("x", 4.0, 5.0).difference_ratio == 0.25


def test_every_far_off_figure_is_explained_or_said_not_to_be(paper, capsys) -> None:
    near, known, unknown = paper.Line("near", 10, 11), paper.Line("beam search of 2, alpaca", 10, 12), paper.Line("odd", 10, 8)
    paper.explain([near, known, unknown])
    printed = capsys.readouterr().out
    assert "near" not in printed
    assert "* beam search of 2, alpaca:\n" in printed
    assert "* odd: not explained" in printed
