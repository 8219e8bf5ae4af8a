"""A chart of milliseconds against events, both logarithmic: appends on the left, contexts on the right."""

import math
from collections.abc import Iterator, Mapping
from typing import Final

from bench.peers.tables import Line

WIDTH, HEIGHT, MARGIN, GAP, TOP, FOOT = 1000, 440, 56, 48, 44, 84
COLOURS: Final = ("#2e7d5b", "#30638e", "#8e6bbf", "#d1495b", "#edae49", "#999999")
PANEL: Final = (WIDTH - 2 * MARGIN - GAP) / 2


def svg(appends: Mapping[str, Line], contexts: Mapping[str, Line]) -> str:
    """Draw a line through the medians for each side and call; a side has the same colour in both panels."""
    names = list(contexts)
    every = [line.p50(size) for lines in (appends, contexts) for line in lines.values() for size in line.seconds]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for left, title, lines in ((MARGIN, "an append", appends), (MARGIN + PANEL + GAP, "a context", contexts)):
        parts.append(f'<text x="{left:.0f}" y="24" font-size="14">ms of {title}, by events in the session</text>')
        parts += _panel(left, lines, names, low, high)
    for number, name in enumerate(names):
        x, y = MARGIN + number % 3 * (WIDTH - 2 * MARGIN) / 3, HEIGHT - 32 + number // 3 * 18
        parts.append(f'<text x="{x:.0f}" y="{y}" fill="{COLOURS[number]}">● {name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(left: float, lines: Mapping[str, Line], names: list[str], low: int, high: int) -> Iterator[str]:
    sizes = sorted({size for line in lines.values() for size in line.seconds})
    least, most = math.log10(sizes[0]), math.log10(max(sizes[-1], 10 * sizes[0]))

    def x(size: int) -> float:
        return left + (math.log10(size) - least) * PANEL / (most - least)

    def y(milliseconds: float) -> float:
        return HEIGHT - FOOT - (math.log10(milliseconds) - low) * (HEIGHT - TOP - FOOT) / max(1, high - low)

    for power in range(low, high + 1):
        level = y(10.0**power)
        yield f'<path d="M{left:.1f} {level:.1f}H{left + PANEL:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{left - 6:.1f}" y="{level + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>'
    for size in sizes:
        yield f'<text x="{x(size):.1f}" y="{HEIGHT - FOOT + 18}" text-anchor="middle">{size:,}</text>'
    for name, line in lines.items():
        colour = COLOURS[names.index(name)]
        points = [(x(size), y(line.p50(size))) for size in sorted(line.seconds)]
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points)
