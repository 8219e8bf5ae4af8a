"""A chart of context sizes over calls, with epochs marked."""

from collections.abc import Mapping, Sequence
from typing import Final

WIDTH, HEIGHT, MARGIN = 900, 360, 48
COLOURS: Final = ("#999999", "#d1495b", "#2e7d5b", "#30638e", "#edae49")


def svg(title: str, lines: Mapping[str, Sequence[tuple[int, bool]]]) -> str:
    """Draw a line for each name: the tokens of each call, with a dot where an epoch was opened."""
    calls = max(len(line) for line in lines.values())
    most = max(tokens for line in lines.values() for tokens, _ in line)

    def x(call: int) -> float:
        return MARGIN + call * (WIDTH - 2 * MARGIN) / max(1, calls - 1)

    def y(tokens: int) -> float:
        return HEIGHT - MARGIN - tokens * (HEIGHT - 2 * MARGIN) / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="20" font-size="14">{title}</text>',
        f'<path d="M{MARGIN} {MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}" fill="none" stroke="black"/>',
        f'<text x="{MARGIN - 4}" y="{MARGIN - 4}" text-anchor="end">{most // 1000}K</text>',
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - MARGIN + 16}" text-anchor="end">{calls} calls</text>',
    ]
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = "M" + "L".join(f"{x(call):.1f} {y(tokens):.1f}" for call, (tokens, _) in enumerate(line))
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts += [
            f'<circle cx="{x(call):.1f}" cy="{y(tokens):.1f}" r="3" fill="{colour}"/>'
            for call, (tokens, opened) in enumerate(line)
            if opened and call
        ]
        legend = name.strip("`")
        parts.append(f'<text x="{MARGIN + 12}" y="{MARGIN + 14 * (number + 1)}" fill="{colour}">{legend}</text>')
    return "\n".join([*parts, "</svg>", ""])
