"""A chart of the share kept against the window."""

from collections.abc import Mapping, Sequence
from typing import Final

from bench.charts import Axis, Line, Panel, draw
from bench.quality.scenarios import FIRST_ASKED, LIVED_THROUGH, SMALLER, WINDOW_IN_CALL
from bench.quality.tables import NEWEST, OWN

EXPLAINED: Final = {
    FIRST_ASKED: "all messages arrive at one time, and the policy names the window",
    LIVED_THROUGH: "the events arrive as they did, with a context before each call",
    SMALLER: "a second view of a session whose first one has twice the window",
    WINDOW_IN_CALL: "only the call names the window, and summaries are not ready for it",
    NEWEST: "without Palimpsest, as many whole rounds as fit",
    OWN: "without Palimpsest, as the agent compacted",
}
TENTHS: Final = 10


def svg(title: str, lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Draw a line for each name through the share at each window, on a logarithmic axis."""
    windows = sorted({window for line in lines.values() for window, _ in line})
    across = Axis("window, tokens", [(float(window), f"{window:,}") for window in windows], windows[-1], True)
    up = Axis("share of the values", [(tenth / TENTHS, f"{tenth * TENTHS}%") for tenth in range(0, TENTHS + 1, 2)], 1)
    points = {name: [(float(window), share) for window, share in sorted(line)] for name, line in lines.items()}
    panel = Panel(title, across, up, [Line(name, found, found) for name, found in points.items()])
    return draw([panel], [(name, EXPLAINED.get(name, "")) for name in lines])
