"""A chart of context sizes over calls, with a dot at each call that opened an epoch."""

from collections.abc import Mapping, Sequence
from typing import Final

from bench.charts import Axis, Line, Panel, draw

EXPLAINED: Final = {
    "append-only": "every call is sent all messages so far",
    "mask every turn, keep 10": "all results but the last ten are stubs; nearly each call adds one",
    "default": "old results become stubs together, when that pays; a dot is a call that changed old content",
}
_STEPS: Final = (10, 20, 50, 100)


def svg(title: str, lines: Mapping[str, Sequence[tuple[int, bool]]]) -> str:
    """Draw a line for each name: the tokens of each call, with a dot where an epoch was opened."""
    calls = max(len(line) for line in lines.values())
    most = max(tokens for line in lines.values() for tokens, _ in line)
    apart, thousands = _step(calls), 1000 * _step(most // 1000)
    numbers = (1, *range(apart, calls + 1, apart))
    across = Axis("calls of the session", [(float(call), f"{call:,}") for call in numbers], calls)
    levels = range(0, most + 1, thousands)
    up = Axis(
        "tokens of the context", [(float(level), f"{level // 1000}K" if level else "0") for level in levels], most
    )
    drawn = [_line(name.strip("`"), line) for name, line in lines.items()]
    legend = [(line.name, EXPLAINED.get(line.name, "")) for line in drawn]
    return draw([Panel(title, across, up, drawn)], legend)


def _step(most: int) -> int:
    """Return a round distance that divides the range up to `most` into at most six."""
    scale = 1
    while True:
        for step in _STEPS:
            if most <= 6 * step * scale:
                return step * scale
        scale *= 10


def _line(name: str, sizes: Sequence[tuple[int, bool]]) -> Line:
    points = [(float(call), float(tokens)) for call, (tokens, _) in enumerate(sizes, 1)]
    dots = [point for point, (_, opened) in zip(points, sizes, strict=True) if opened and point[0] > 1]
    return Line(name, points, dots)
