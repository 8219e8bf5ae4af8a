"""Output of a comparison: two policies side by side for the user, JSON lines for machines."""

from collections.abc import Sequence
from typing import Final, TextIO

from rich.console import Console
from rich.table import Table

from palimpsest_tools.recordings.recording import Recording
from palimpsest_tools.replay.compare import Comparison, Pair, bills, compared_total_json, in_tokens_of, pairs
from palimpsest_tools.replay.report import relative_difference
from palimpsest_tools.replay.show import (
    CALLS_SHOWN,
    LiveShow,
    Show,
    closing_lines,
    dispositions,
    largest,
    percent,
    print_json,
    print_server,
    table_of,
)
from palimpsest_tools.server import RunningServer

_POINTS_SHOWN: Final = 24


class CompareJson(Show[Comparison]):
    """Prints one JSON object for each recording, then a total."""

    def __init__(self, out: TextIO, server: RunningServer, names: tuple[str, str]) -> None:
        self._out = out
        self._server = server
        self._names = dict(zip("ab", names, strict=True))
        print_server(Console(stderr=True), server)

    def report(self, report: Comparison) -> None:
        """Print the recording's line."""
        print_json({"policies": self._names, **report.as_json()}, self._out)

    def summary(self, reports: Sequence[Comparison]) -> None:
        """Print the total line."""
        print_json(compared_total_json(reports, self._server.url), self._out)


class CompareTable(LiveShow[Comparison]):
    """Shows the latest calls side by side, then the calls that opened an epoch, and the totals."""

    def __init__(
        self, console: Console, server: RunningServer, recordings: Sequence[Recording], names: tuple[str, str]
    ) -> None:
        super().__init__(console, server, recordings, sides=2)
        console.print(f"A: {names[0]}\nB: {names[1]}", highlight=False, soft_wrap=True)

    def latest(self) -> Table:
        """Return a table of the latest calls of both sides."""
        a, b = self.calls
        return _pairs_table(pairs(a, in_tokens_of(tuple(a), tuple(b)))[-CALLS_SHOWN:], self.title)

    def report(self, report: Comparison) -> None:
        """Print the calls at which a policy opened an epoch."""
        super().report(report)
        points = report.turning_points
        hidden = len(points) - _POINTS_SHOWN
        calls = f"the last {_POINTS_SHOWN} calls of {len(points)}" if hidden > 0 else "the calls"
        self.console.print(
            _pairs_table(points[-_POINTS_SHOWN:], report.a.id, f"{calls} at which either changed what is shown")
        )

    def summary(self, reports: Sequence[Comparison]) -> None:
        """Print the sessions, the total and the failures."""
        sides = (("A", [one.a for one in reports]), ("B", [one.b for one in reports]))
        lines = [f"{letter}: {line}" for letter, side in sides for line in closing_lines(side)]
        self.finish(_compared_table(reports), lines)


def _pairs_table(rows: Sequence[Pair], title: str, caption: str | None = None) -> Table:
    """Return a table of calls side by side: context tokens, evictions, and the bill."""
    headings = ("call", "context A", "context B", "left out A", "left out B", "billed A", "billed B", "B - A")
    table = table_of(headings, title=title, caption=caption)
    for row in rows:
        sides = (row.a, row.b)
        table.add_row(
            str(row.number),
            *("refused" if side is None else f"{side.estimate:,}" for side in sides),
            *("-" if side is None else dispositions(side.left_out) for side in sides),
            *("-" if side is None else f"{side.bill.billed:,.0f}" for side in sides),
            "-" if row.difference is None else f"{row.difference:+,.0f}",
        )
    return table


def _compared_table(comparisons: Sequence[Comparison]) -> Table:
    """Return a table with a row for each recording and, if there are several, their total."""
    headings = ("session", "calls", "largest A", "largest B", "epochs", "cache", "billed A", "billed B", "B to A")
    table = table_of(headings, caption="billed: input-token equivalents, as A counts; epochs and cache: A / B")
    for one in comparisons:
        counts = dict.fromkeys(f"{len(report.calls):,}" for report in (one.a, one.b))
        table.add_row(
            one.a.id,
            " / ".join(counts),
            largest(one.a),
            largest(one.b),
            f"{one.a.epochs} / {one.b.epochs}",
            f"{one.a.bill.read_share:.0%} / {one.b.bill.read_share:.0%}",
            f"{one.a.bill.billed:,.0f}",
            f"{one.b.bill.billed:,.0f}",
            percent(relative_difference(one.b.bill, one.a.bill)),
        )
    if len(comparisons) > 1:
        a, b = bills(comparisons)
        cache = f"{a.read_share:.0%} / {b.read_share:.0%}"
        figures = (cache, f"{a.billed:,.0f}", f"{b.billed:,.0f}", percent(relative_difference(b, a)))
        table.add_row("total", "", "", "", "", *figures, style="bold")
    return table
