"""A chart of the share kept against the window."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

WIDTH, HEIGHT, MARGIN = 900, 420, 48
COLOURS: Final = ("#2e7d5b", "#30638e", "#8e6bbf", "#edae49", "#999999", "#d1495b")
TENTHS: Final = 10


def svg(title: str, lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Draw a line for each name through the share at each window, on a logarithmic axis."""
    windows = sorted({window for line in lines.values() for window, _ in line})
    least, most = math.log(windows[0]), math.log(max(windows[-1], windows[0] + 1))

    def x(window: int) -> float:
        return MARGIN + (math.log(window) - least) * (WIDTH - 2 * MARGIN) / (most - least)

    def y(share: float) -> float:
        return HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="20" font-size="14">{title}</text>',
    ]
    for tenth in range(0, TENTHS + 1, 2):
        level = y(tenth / TENTHS)
        parts.append(f'<path d="M{MARGIN} {level:.1f}H{WIDTH - MARGIN}" stroke="#dddddd"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{level + 4:.1f}" text-anchor="end">{tenth * TENTHS}%</text>')
    parts += [
        f'<text x="{x(window):.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{window:,}</text>'
        for window in windows
    ]
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = "M" + "L".join(f"{x(window):.1f} {y(share):.1f}" for window, share in sorted(line))
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(w):.1f}" cy="{y(share):.1f}" r="3" fill="{colour}"/>' for w, share in line]
        place = HEIGHT - MARGIN - 12 - 15 * (len(lines) - 1 - number)
        parts.append(f'<text x="{WIDTH - MARGIN - 8}" y="{place}" fill="{colour}" text-anchor="end">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
