"""A chart of milliseconds against events, both logarithmic: appends on the left, contexts on the right."""

import math
from collections.abc import Mapping
from typing import Final

from bench.charts import Axis, Line, Panel, draw
from bench.peers import tables

EXPLAINED: Final = {
    "ours, over HTTP": "API and worker in processes of their own",
    "OpenAI Agents SDK": "SQLAlchemySession in process; the newest 100 items",
    "Google ADK": "DatabaseSessionService in process; the newest 100 events",
    "LangGraph": "AsyncPostgresSaver in process; the state, trimmed",
    "LangGraph, DeltaChannel": "with the channel that stores only what was added",
    "ours, first of a new process": "nothing is held in memory yet",
}


def svg(appends: Mapping[str, tables.Line], contexts: Mapping[str, tables.Line]) -> str:
    """Draw a line through the medians for each side and call; a side has the same colour in both panels."""
    every = [line.p50(size) for lines in (appends, contexts) for line in lines.values() for size in line.seconds]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    powers = [(10.0**power, f"{10.0**power:,g}") for power in range(low, high + 1)]
    up = Axis("milliseconds, median", powers, 10.0**high, logarithmic=True)
    panels = [_panel(title, lines, up) for title, lines in (("An append", appends), ("A context", contexts))]
    return draw(panels, [(name, EXPLAINED.get(name, "")) for name in contexts], 380)


def _panel(title: str, lines: Mapping[str, tables.Line], up: Axis) -> Panel:
    sizes = sorted({size for line in lines.values() for size in line.seconds})
    across = Axis("events in the session", [(float(size), f"{size:,}") for size in sizes], sizes[-1], True)
    points = {name: [(float(size), line.p50(size)) for size in sorted(line.seconds)] for name, line in lines.items()}
    return Panel(title, across, up, [Line(name, found, found) for name, found in points.items()])
