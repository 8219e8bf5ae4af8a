"""What a comparison prints: two policies side by side for people, JSON lines for machines."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.recordings.recording import Recording
from app.remote.server import RunningServer
from app.replay.compare import Comparison, Pair, bills, compared_total_json, in_tokens_of, pairs
from app.replay.report import CallReport, SessionReport, relative_difference
from app.replay.show import closing_lines, dispositions

_CALLS_SHOWN: Final = 12
_POINTS_SHOWN: Final = 24


class CompareShow(AbstractContextManager["CompareShow"], Protocol):
    """Shows a comparison while it runs. A context manager: leaving it restores the terminal."""

    def __enter__(self) -> Self: ...

    def begins(self, recording: Recording) -> None:
        """Show that a recording starts."""

    def called(self, side: int, call: CallReport) -> None:
        """Show a context that was answered, for A (`side` 0) or B (1)."""

    def ended(self, comparison: Comparison) -> None:
        """Show a recording that was replayed under both policies."""

    def summary(self, comparisons: Sequence[Comparison]) -> None:
        """Show the results of all recordings."""


class CompareJson(CompareShow):
    """Prints one JSON object for each recording, then a total."""

    def __init__(self, out: TextIO, server: RunningServer, names: tuple[str, str]) -> None:
        self._out = out
        self._server = server
        self._names = dict(zip("ab", names, strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def begins(self, recording: Recording) -> None:
        """Nothing to print."""

    def called(self, side: int, call: CallReport) -> None:
        """Nothing to print."""

    def ended(self, comparison: Comparison) -> None:
        """Print the recording's line."""
        self._line({"policies": self._names, **comparison.as_json()})

    def summary(self, comparisons: Sequence[Comparison]) -> None:
        """Print the total line."""
        self._line(compared_total_json(comparisons, self._server.url))

    def _line(self, value: Mapping[str, object]) -> None:
        print(json.dumps(value, ensure_ascii=False), file=self._out, flush=True)


class CompareTable(CompareShow):
    """Shows the latest calls side by side while it runs, then the calls that opened an epoch, and the totals."""

    def __init__(
        self, console: Console, server: RunningServer, recordings: Sequence[Recording], names: tuple[str, str]
    ) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._task = self._progress.add_task("calls", total=2 * sum(recording.calls for recording in recordings))
        self._calls: tuple[deque[CallReport], deque[CallReport]] = (deque(maxlen=50), deque(maxlen=50))
        self._title = ""
        self._live = Live(console=console, get_renderable=self._now, transient=True, refresh_per_second=8)
        self._due = self._done = 0
        console.print(f"server: {server.url} ({server.origin})", highlight=False, soft_wrap=True)
        console.print(f"A: {names[0]}\nB: {names[1]}", highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begins(self, recording: Recording) -> None:
        """Start the session's table."""
        for calls in self._calls:
            calls.clear()
        self._title = recording.id
        self._due += 2 * recording.calls

    def called(self, side: int, call: CallReport) -> None:
        """Add the call to the table."""
        self._calls[side].append(call)
        self._done += 1
        self._progress.update(self._task, completed=self._done)

    def ended(self, comparison: Comparison) -> None:
        """Print the calls at which a policy opened an epoch; failed calls count as done, too."""
        self._done = self._due
        self._progress.update(self._task, completed=self._done)
        points = comparison.turning_points
        left = len(points) - _POINTS_SHOWN
        caption = f"the last {_POINTS_SHOWN} calls of {len(points)}" if left > 0 else "the calls"
        self._console.print(
            pairs_table(points[-_POINTS_SHOWN:], comparison.a.id, f"{caption} at which either changed what is shown")
        )

    def summary(self, comparisons: Sequence[Comparison]) -> None:
        """Print the sessions, the total, and what failed."""
        self._live.stop()
        self._console.print(compared_table(comparisons))
        for letter, reports in (("A", [one.a for one in comparisons]), ("B", [one.b for one in comparisons])):
            for line in closing_lines(reports):
                self._console.print(f"{letter}: {line}", highlight=False, soft_wrap=True)

    def _now(self) -> RenderableType:
        a, b = self._calls
        rows = pairs(a, in_tokens_of(a, b))[-_CALLS_SHOWN:]
        return Group(pairs_table(rows, self._title), self._progress)


def pairs_table(rows: Sequence[Pair], title: str, caption: str | None = None) -> Table:
    """A table of calls side by side: context tokens, what was left out, and the bill."""
    table = _table(
        ("call", "context A", "context B", "left out A", "left out B", "billed A", "billed B", "B - A"), title, caption
    )
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


def compared_table(comparisons: Sequence[Comparison]) -> Table:
    """A table with a row for each recording and, if there are several, their total."""
    headings = ("session", "calls", "largest A", "largest B", "epochs", "cache", "billed A", "billed B", "B to A")
    table = _table(headings, None, "billed: input-token equivalents, as A counts; epochs and cache: A / B")
    for comparison in comparisons:
        table.add_row(
            comparison.a.id,
            " / ".join(f"{len(report.calls):,}" for report in (comparison.a, comparison.b))
            if len(comparison.a.calls) != len(comparison.b.calls)
            else f"{len(comparison.a.calls):,}",
            _largest(comparison.a),
            _largest(comparison.b),
            f"{comparison.a.epochs} / {comparison.b.epochs}",
            f"{comparison.a.bill.read_share:.0%} / {comparison.b.bill.read_share:.0%}",
            f"{comparison.a.bill.billed:,.0f}",
            f"{comparison.b.bill.billed:,.0f}",
            _percent(relative_difference(comparison.b.bill, comparison.a.bill)),
        )
    if len(comparisons) > 1:
        a, b = bills(comparisons)
        cache = f"{a.read_share:.0%} / {b.read_share:.0%}"
        figures = (cache, f"{a.billed:,.0f}", f"{b.billed:,.0f}", _percent(relative_difference(b, a)))
        table.add_row("total", "", "", "", "", *figures, style="bold")
    return table


def _largest(report: SessionReport) -> str:
    return f"{max((call.estimate for call in report.calls), default=0):,}"


def _percent(difference: float | None) -> str:
    return "-" if difference is None else f"{difference:+.1%}"


def _table(headings: Sequence[str], title: str | None, caption: str | None) -> Table:
    table = Table(
        box=None, padding=(0, 1, 0, 0), title=title, title_justify="left", caption=caption, caption_justify="left"
    )
    for heading in headings:
        if heading == "session" or heading.startswith("left out"):
            table.add_column(heading, overflow="fold", min_width=10)
        else:
            table.add_column(heading, justify="right")
    return table
