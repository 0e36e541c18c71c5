"""octavo.comparison.page: one file, complete, well formed, and true to its data."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from octavo.comparison.lines import figure_rows, headlines, verdict
from octavo.comparison.page import make_page
from octavo.comparison.record import Difference
from octavo.comparison.svg import Drawing, Scale

VOID = {"meta", "br"}


class Nesting(HTMLParser):
    """Checks that elements are closed in order, and collects what a network would be needed for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(comparison) -> str:
    return make_page(comparison)


def drawings(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_elements_nest_and_nothing_is_fetched(page: str) -> None:
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == [] and nesting.links == []
    assert "url(" not in page and "@import" not in page


def test_there_is_a_drawing_of_each_kind(page: str, comparison) -> None:
    found = drawings(page)
    assert len(found) == len(comparison.runs) + 1 + 1 + 2  # lanes, at once, memory, two bar charts
    assert all(drawing.find("{*}title").text for drawing in found)


def test_marks_lie_inside_their_drawings(page: str) -> None:
    for drawing in drawings(page):
        width, height = map(float, drawing.get("viewBox").split()[2:])
        boxes = drawing.findall("{*}rect")
        assert boxes or drawing.findall("{*}polyline")
        for box in boxes:
            x, y, right, down = (float(box.get(name)) for name in ("x", "y", "width", "height"))
            assert x >= 0 and y >= 0 and x + right <= width + 0.1 and y + down <= height


def test_every_mark_has_a_colour(page: str) -> None:
    style = page.partition("</style>")[0]
    kinds = {kind for drawing in drawings(page) for mark in drawing.findall("{*}rect") for kind in mark.get("class").split()}
    assert kinds and not [kind for kind in kinds if f".{kind} {{ fill: var(--{kind})" not in style]


def test_colours_exist_for_light_dark_and_paper(page: str) -> None:
    style = page.partition("</style>")[0]
    light, rest = style.split("@media (prefers-color-scheme: dark)")
    dark, paper = rest.split("@media print")
    used = set(re.findall(r"var\((--[\w-]+)\)", style))
    for part in (light, dark, paper):
        assert used <= set(re.findall(r"(--[\w-]+):", part))


def test_data_in_the_page_is_the_record(page: str, comparison) -> None:
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(data) == json.loads(json.dumps(comparison.as_json()))


def test_texts_cannot_become_markup(comparison) -> None:
    evil = replace(comparison, title="<script>alert(1)</script>", command="octavo </script><b>")
    page = make_page(evil)
    assert "<script>alert" not in page and "</script><b>" not in page


def test_every_row_of_the_table_is_shown(page: str, comparison) -> None:
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    assert [re.findall("<td>(.*?)</td>", cells) for _, cells in rows] == [values for _, values in figure_rows(comparison)]


def test_difference_is_shown(comparison) -> None:
    difference = Difference("conversation 3, about fog", 17, "paged: token 5", "contiguous: token 6")
    inexact = replace(comparison, num_equal=7, difference=difference)
    page = make_page(inexact)
    assert '<div class="gain bad">no</div>' in page
    assert "part in conversation 3, about fog, at 17: paged: token 5; contiguous: token 6" in page
    assert verdict(inexact).startswith("exact: no (7 of 8 answers")


def test_headlines_set_the_first_run_against_the_last(comparison) -> None:
    at_once = headlines(comparison)[0]
    assert (at_once.first, at_once.last, at_once.gain) == ("1", "8", 8.0)


@pytest.mark.parametrize(
    ("largest", "ticks"), [(1.5, [0, 0.5, 1, 1.5]), (97, [0, 20, 40, 60, 80]), (48, [0, 10, 20, 30, 40]), (0, [0])]
)
def test_ticks_are_round(largest: float, ticks: list[float]) -> None:
    assert Scale(largest, 0, 100).ticks(5) == pytest.approx(ticks)


def test_text_in_a_drawing_is_escaped() -> None:
    drawing = Drawing(10, 10, "a < b")
    drawing.text(0, 0, "<&>")
    root = ElementTree.fromstring(drawing.render())
    assert [element.text for element in root] == ["a < b", "<&>"]
