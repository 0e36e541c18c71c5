"""A comparison as one page: a single HTML file that needs no network, light or dark as the reader likes it, and prints.

Owns: the page's words and order. Must not know: how anything was measured or is drawn.
"""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from octavo.comparison.charts import SLOT_KINDS, draw_bars, draw_lanes, draw_running, draw_slots, longest_run_s
from octavo.comparison.lines import Headline, figure_rows, headlines
from octavo.comparison.record import Comparison

SLOT_NAMES = ("hold a token", "reserved for a later token", "allocated and empty", "free")


def make_page(comparison: Comparison) -> str:
    """Returns the page; it contains the comparison as JSON too."""
    sections = [_opening(comparison), _table(comparison), _lanes(comparison), _running(comparison)]
    if any(run.figures.slots is not None for run in comparison.runs):
        sections.append(_slots(comparison))
    sections += [_speed(comparison), _method(comparison)]
    style = files("octavo.comparison").joinpath("page.css").read_text(encoding="utf-8")
    data = json.dumps(comparison.as_json()).replace("<", "\\u003c")  # so that no text in it can end the element
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(comparison.title)}</title>",
            f"<style>\n{style}</style></head><body><main>",
            *sections,
            f'<script type="application/json" id="data">{data}</script>',
            "</main></body></html>\n",
        ]
    )


def _opening(comparison: Comparison) -> str:
    tiles = "".join(_tile(headline) for headline in headlines(comparison)) + _exact_tile(comparison)
    return (
        f'<h1>{escape(comparison.title)}</h1>\n<p class="lede">{escape(comparison.summary)}</p>\n<div class="tiles">{tiles}</div>'
        f"<p>Each tile sets <em>{escape(comparison.runs[0].name)}</em> against <em>{escape(comparison.runs[-1].name)}</em>.</p>"
    )


def _tile(headline: Headline) -> str:
    gain = "–" if headline.gain is None else f"{headline.gain:.1f}×" if headline.gain < 10 else f"{headline.gain:.0f}×"
    return (
        f'<div class="tile"><div class="what">{escape(headline.name)}</div><div class="gain">{gain}</div>'
        f'<div class="from">{escape(headline.first)} → {escape(headline.last)}</div></div>'
    )


def _exact_tile(comparison: Comparison) -> str:
    kind, word = ("good", "yes") if comparison.is_exact else ("bad", "no")
    equal = f"{comparison.num_equal} of {comparison.num_compared} answers the same in every run"
    return (
        f'<div class="tile"><div class="what">exact</div><div class="gain {kind}">{word}</div><div class="from">{equal}</div></div>'
    )


def _table(comparison: Comparison) -> str:
    heads = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in comparison.runs)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(value)}</td>" for value in values)}</tr>'
        for name, values in figure_rows(comparison)
    )
    difference = comparison.difference
    parted = (
        f'<p class="bad">The answers part in {escape(difference.where)}, at {difference.position}: '
        f"{escape(difference.first)}; {escape(difference.second)}.</p>"
        if difference is not None
        else ""
    )
    table = f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<h2>The figures</h2>\n<div class="scroll">{table}</div>{parted}'


def _lanes(comparison: Comparison) -> str:
    seconds = longest_run_s(comparison.runs)
    knows_start = any(request.started is not None for run in comparison.runs for request in run.requests)
    kinds = [("waiting", "waiting" if knows_start else "waiting for the first token"), ("answering", "answering")]
    if knows_start:
        kinds.insert(1, ("reading", "reading the prompt"))
    figures = "".join(_figure(run.name, draw_lanes(run, seconds)) for run in comparison.runs)
    return (
        "<h2>Who waits, and who is answered</h2>\n<p>One line for each conversation, in the order in which they were served; "
        f'all have the same time below them.</p>{_legend(kinds)}<div class="pair">{figures}</div>'
    )


def _running(comparison: Comparison) -> str:
    legend = _legend([(f"run-{index}", run.name) for index, run in enumerate(comparison.runs)])
    return f"<h2>Conversations at once</h2>\n{legend}<figure>{draw_running(comparison.runs)}</figure>"


def _slots(comparison: Comparison) -> str:
    legend = _legend(list(zip(SLOT_KINDS, SLOT_NAMES, strict=True)))
    words = "At each run's best moment: the one with the most tokens in memory. What is free then is broken up, or not needed yet."
    return f"<h2>What the memory was used for</h2>\n<p>{words}</p>{legend}<figure>{draw_slots(comparison.runs)}</figure>"


def _speed(comparison: Comparison) -> str:
    runs = comparison.runs
    rates = [run.figures.answer_tokens_per_s for run in runs]
    first_tokens = [None if run.figures.ttft is None else run.figures.ttft.mean_ms / 1e3 for run in runs]
    charts = (("answer tokens per second", rates, "tokens/s"), ("mean time to first token", first_tokens, "s"))
    figures = "".join(_figure(title, draw_bars(runs, values, title=title, unit=unit)) for title, values, unit in charts)
    return f'<h2>Speed</h2>\n<div class="pair">{figures}</div>'


def _method(comparison: Comparison) -> str:
    runs = "".join(f"<dt>{escape(run.name)}</dt><dd>{escape(run.description)}</dd>" for run in comparison.runs)
    settings = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in comparison.settings.items())
    notes = "".join(f"<p>{escape(note)}</p>" for note in comparison.notes)
    return (
        f"<h2>How it was measured</h2>\n{notes}<dl>{settings}</dl>\n<h2>The runs</h2>\n<dl>{runs}</dl>\n"
        f"<footer>Made by <code>{escape(comparison.command)}</code>. This page holds all its data as JSON.</footer>"
    )


def _figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>"


def _legend(kinds: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<li><i class="{kind}"></i>{escape(name)}</li>' for kind, name in kinds)
    return f'<ul class="legend">{items}</ul>'
