"""Drawing: shapes to one SVG element that a page can hold.

Owns: the writing of elements, axes with round numbers, and bars of shares. Must not know: what is drawn. Colours are classes; the
page has them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

MIN_LABELLED_SHARE = 0.06  # of a bar's width; less has no room for its percentage


@dataclass
class Drawing:
    """An SVG image that grows; ``y`` points down.

    Attributes:
        title: what the image shows, for those who cannot see it.
    """

    width: float
    height: float
    title: str
    _elements: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draws a filled box; one without an extent is left out."""
        if width > 0 and height > 0:
            size = f'width="{_number(width)}" height="{_number(height)}"'
            self._elements.append(f'<rect class="{kind}" x="{_number(x)}" y="{_number(y)}" {size}/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draws a straight line."""
        self.path([(x1, y1), (x2, y2)], kind)

    def path(self, points: list[tuple[float, float]], kind: str) -> None:
        """Draws a line through points."""
        steps = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._elements.append(f'<polyline class="{kind}" points="{steps}"/>')

    def text(self, x: float, y: float, words: str, kind: str = "label", *, anchor: str = "start") -> None:
        """Writes words whose baseline begins, has its middle or ends at a point."""
        place = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"'
        self._elements.append(f'<text class="{kind}" {place}>{escape(words)}</text>')

    def render(self) -> str:
        """Returns the element."""
        box = f'viewBox="0 0 {_number(self.width)} {_number(self.height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {box}><title>{escape(self.title)}</title>'
        return "".join([head, *self._elements, "</svg>"])


@dataclass(frozen=True)
class Scale:
    """A range of values on a range of coordinates."""

    largest: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Returns a value's coordinate; 0 is at ``start``."""
        return self.start + (self.end - self.start) * value / self.largest if self.largest else self.start

    def ticks(self, most: int = 6) -> list[float]:
        """Returns round values from 0 to ``largest``, at most ``most`` steps."""
        if self.largest <= 0:
            return [0.0]
        rough = self.largest / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
        return [index * step for index in range(int(self.largest / step + 1e-9) + 1)]


def time_axis(drawing: Drawing, scale: Scale, y: float) -> None:
    """Draws a horizontal axis of seconds with its ticks below it."""
    drawing.line(scale.start, y, scale.end, y, "axis")
    ticks = scale.ticks()
    for tick in ticks:
        drawing.line(scale(tick), y, scale(tick), y + 4, "axis")
        drawing.text(scale(tick), y + 16, f"{tick:g} s" if tick == ticks[-1] else f"{tick:g}", anchor="middle")


def count_axis(drawing: Drawing, scale: Scale, left: float, right: float) -> None:
    """Draws a vertical axis of numbers with lines across the image."""
    for tick in scale.ticks(5):
        drawing.line(left, scale(tick), right, scale(tick), "axis" if tick == 0 else "grid")
        drawing.text(left - 6, scale(tick) + 4, f"{tick:g}", anchor="end")


def share_bar(drawing: Drawing, parts: Iterable[tuple[str, float]], y: float) -> None:
    """Draws a bar across the image, whose parts are kinds with their shares of the whole; they are labelled where there is room."""
    x = 0.0
    for kind, share in parts:
        width = drawing.width * share
        drawing.rect(x, y, width, 18, kind)
        if share >= MIN_LABELLED_SHARE:
            drawing.text(x + width / 2, y + 13, f"{share:.0%}", f"on {kind}-text", anchor="middle")
        x += width


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
