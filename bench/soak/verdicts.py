"""Bounds of the sampled quantities, and the verdicts on them as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.soak.flat import Bound, Series, quantile, trend
from bench.soak.watch import SESSION

MEMORY: Final = Bound(0.05, 12.0)
POSTGRES: Final = Bound(0.10, 32.0)
FILES: Final = Bound(0.0, 6.0)
CONNECTIONS: Final = Bound(0.0, 6.0)
QUEUE: Final = Bound(0.5, 20.0)
SESSIONS: Final = Bound(0.1, 0.0)
"""If the load itself grows, the other verdicts mean nothing."""
MIDDLE: Final = Bound(0.25, 3.0)
TAIL: Final = Bound(0.5, 40.0)
FEW: Final = 0.01
WINDOWS: Final = 30
"""Number of intervals over which latencies are grouped: minutes of half an hour, or shorter ones."""
WINDOW_LEAST: Final = 5.0
REQUESTS_LEAST: Final = 5
"""Minimum number of requests of a kind in an interval; intervals with fewer are left out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A line of the table. `flat` is None where there were too few samples."""

    name: str
    first: float | None
    last: float | None
    per_hour: float | None
    allowed: float | None
    flat: bool | None


def of_series(name: str, series: Series, bound: Bound) -> Verdict:
    """Return the verdict on whether a quantity is flat."""
    found = trend(series, bound)
    return Verdict(name, found.first, found.last, found.per_hour, found.allowed_per_hour, found.flat)


def few(name: str, number: int, of: int) -> Verdict:
    """Return the verdict on whether `number` is a small share of `of`."""
    return Verdict(name, None, number, None, of * FEW, number <= of * FEW)


def none(name: str, number: float) -> Verdict:
    """Return the verdict on whether `number` is zero."""
    return Verdict(name, None, number, None, 0.0, number == 0)


def bound_of(name: str) -> Bound:
    """Return the permitted growth of a sampled quantity."""
    if name == SESSION:
        return SESSIONS
    if name.startswith("Postgres"):
        return POSTGRES
    if name.endswith("MB"):
        return MEMORY
    if name.endswith("open files"):
        return FILES
    return CONNECTIONS if name == "connections" else QUEUE


def by_window(times: Sequence[tuple[float, float]], begun: float, seconds: float) -> tuple[Series, Series]:
    """Return p50 and p99 of a kind's latencies in ms, by the minute, or by a thirtieth of the time if that is less."""
    window = max(WINDOW_LEAST, min(60.0, seconds / WINDOWS))
    parts: dict[int, list[float]] = {}
    for at, took in times:
        if 0 <= at - begun < seconds:
            parts.setdefault(int((at - begun) / window), []).append(took * 1e3)
    kept = [(number * window, found) for number, found in sorted(parts.items()) if len(found) >= REQUESTS_LEAST]
    middle = [(at, quantile(found, 0.5)) for at, found in kept]
    return middle, [(at, quantile(found, 0.99)) for at, found in kept]


def of_times(times: Mapping[str, Sequence[tuple[float, float]]], begun: float, seconds: float) -> list[Verdict]:
    """Return the verdicts on the latencies of each kind."""
    found = []
    for kind, taken in sorted(times.items()):
        middle, tail = by_window(taken, begun, seconds)
        found.append(of_series(f"{kind} p50, ms", middle, MIDDLE))
        found.append(of_series(f"{kind} p99, ms", tail, TAIL))
    return found


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a Markdown table."""
    lines = [
        "| quantity | first third | last third | slope an hour | at most | |",
        "|---|---|---|---|---|---|",
    ]
    for one in verdicts:
        cells = [_figure(value) for value in (one.first, one.last, one.per_hour, one.allowed)]
        said = {True: "flat", False: "**not flat**", None: "too little to say"}
        if one.first is None:
            said |= {True: "few", False: "**many**"} if one.allowed else {True: "none", False: "**some**"}
        lines.append(f"| {one.name} | {' | '.join(cells)} | {said[one.flat]} |")
    return "\n".join(lines)


def sizes(tables: Mapping[str, Series], least: float = 1.0) -> str:
    """Return a Markdown table of the first and last sizes of tables of `least` MB or more, which may grow."""
    lines = ["| table | MB at first | at last |", "|---|---|---|"]
    for name, series in sorted(tables.items(), key=lambda one: -one[1][-1][1]):
        if series[-1][1] >= least:
            lines.append(f"| `{name}` | {series[0][1]:.1f} | {series[-1][1]:.1f} |")
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"
