"""Line charts as SVG, legible in light and in dark colours and with any font.

Each line has its own colour, dashes and a row in the legend that explains it. The texts leave room for fonts that are a
third wider than the narrowest in use.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 1000
LEFT, RIGHT, TOP, FOOT, GAP = 64, 44, 64, 66, 84
ROW: Final = 22
LEGEND_CHARS: Final = 100
"""A name and its explanation: as much as the widest fonts have room for."""
COLOURS: Final = (
    ("#0b5d94", "#5aaee6"),
    ("#b0430a", "#f08a4b"),
    ("#00725a", "#2bb58f"),
    ("#93407a", "#d993c2"),
    ("#7a5c00", "#e5b53c"),
    ("#5c6670", "#a3acb6"),
)
"""The colours of the lines on white and on black, after Okabe and Ito; a line keeps its own in all panels."""
DASHES: Final = ("", "9 4", "5 2", "12 4 2 4", "6 3 2 3", "2 3")
_PAPER: Final = ((".page", "#ffffff", "#14171b"), ("text", "#1b1f24", "#e7eaee"), ("text.soft", "#4f5966", "#abb4bf"))
_GRID: Final = ("#d5d9df", "#3b424c")


@dataclass(frozen=True)
class Axis:
    """A scale from the first tick to `last`; each tick is a value with its text."""

    title: str
    ticks: Sequence[tuple[float, str]]
    last: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return the place of a value, 0 at the first tick and 1 at the last value."""
        low, high = self._scaled(self.ticks[0][0]), self._scaled(self.last)
        return (self._scaled(value) - low) / ((high - low) or 1)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value


@dataclass(frozen=True)
class Line:
    """The points of a line, and those of them that have a dot."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """Lines between two axes."""

    title: str
    across: Axis
    up: Axis
    lines: Sequence[Line]


def draw(panels: Sequence[Panel], legend: Sequence[tuple[str, str]], height: int = 420) -> str:
    """Return a chart of panels in a row. `legend` has the name of each line and its explanation, in order.

    Together they may have LEGEND_CHARS.
    """
    width = (WIDTH - LEFT - RIGHT - (len(panels) - 1) * GAP) / len(panels)
    whole = height + ROW * len(legend) + 10
    names = [name for name, _ in legend]
    assert all(len(name + explanation) <= LEGEND_CHARS for name, explanation in legend)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole}" font-family="system-ui, sans-serif"',
        f' font-size="13" role="img">\n<style>{_style(len(legend))}</style>',
        f'<rect class="page" width="{WIDTH}" height="{whole}"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, LEFT + number * (width + GAP), width, height, names)
    for number, (name, explanation) in enumerate(legend):
        y = height + ROW * number + 4
        parts.append(f'<path class="line l{number}" d="M{LEFT} {y - 4}h40"/>')
        parts.append(f'<circle class="d{number}" cx="{LEFT + 20}" cy="{y - 4}" r="3"/>')
        words = f'<tspan font-weight="600">{escape(name)}</tspan>{escape(f": {explanation}" if explanation else "")}'
        parts.append(f'<text x="{LEFT + 52}" y="{y}">{words}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _style(lines: int) -> str:
    def scheme(at: int) -> str:
        paper = "".join(f"{name}{{fill:{shades[at]}}}" for name, *shades in _PAPER)
        rules = "".join(
            f".l{number}{{stroke:{COLOURS[number][at]}}}.d{number}{{fill:{COLOURS[number][at]}}}"
            for number in range(lines)
        )
        return f"{paper}.grid{{stroke:{_GRID[at]}}}{rules}"

    dashes = "".join(f".l{number}{{stroke-dasharray:{DASHES[number]}}}" for number in range(lines) if DASHES[number])
    fixed = f".line{{fill:none;stroke-width:2}}.grid{{fill:none}}{dashes}"
    return f"{fixed}{scheme(0)}@media (prefers-color-scheme:dark){{{scheme(1)}}}"


def _panel(panel: Panel, left: float, width: float, height: int, names: list[str]) -> Iterator[str]:
    tall = height - TOP - FOOT

    def x(value: float) -> float:
        return left + width * panel.across.place(value)

    def y(value: float) -> float:
        return TOP + tall * (1 - panel.up.place(value))

    yield f'<text x="{left:.0f}" y="24" font-size="15" font-weight="600">{escape(panel.title)}</text>'
    yield f'<text class="soft" x="{left:.0f}" y="46">{escape(panel.up.title)}</text>'
    for value, text in panel.up.ticks:
        yield f'<path class="grid" d="M{left:.1f} {y(value):.1f}h{width:.1f}"/>'
        yield f'<text class="soft" x="{left - 8:.1f}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    for value, text in panel.across.ticks:
        yield f'<path class="grid" d="M{x(value):.1f} {TOP + tall}v5"/>'
        place = f'x="{x(value):.1f}" y="{TOP + tall + 20}" text-anchor="middle"'
        yield f'<text class="soft" {place}>{escape(text)}</text>'
    middle = f'x="{left + width / 2:.0f}" y="{TOP + tall + 40}" text-anchor="middle"'
    yield f'<text class="soft" {middle}>{escape(panel.across.title)}</text>'
    for line in panel.lines:
        number = names.index(line.name)
        path = "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in line.points)
        yield f'<path class="line l{number}" d="{path}"/>'
        yield from (f'<circle class="d{number}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="3"/>' for a, b in line.dots)
