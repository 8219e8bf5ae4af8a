"""Output of a replay: a live table and a summary for the user, JSON lines for machines."""

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Generic, Self, TextIO, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from palimpsest_tools.recordings.recording import Recording
from palimpsest_tools.replay.bill import Bill
from palimpsest_tools.replay.report import CallReport, SessionReport, relative_difference, total_json, totals
from palimpsest_tools.server import RunningServer

CALLS_SHOWN: Final = 12
_FAILURES_SHOWN: Final = 20

R = TypeVar("R")


class Show(ABC, Generic[R]):
    """Output of a replay with reports of type R. A context manager: leaving it restores the terminal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def start(self, recording: Recording) -> None:
        """Show that the replay of a recording starts."""

    def call(self, call: CallReport, side: int = 0) -> None:
        """Show a context, of a comparison that of policy A (`side` 0) or B (1)."""

    @abstractmethod
    def report(self, report: R) -> None:
        """Show the report of a recording."""

    @abstractmethod
    def summary(self, reports: Sequence[R]) -> None:
        """Show the results of all recordings."""


class JsonLines(Show[SessionReport]):
    """Prints one JSON object for each session, then a total."""

    def __init__(self, out: TextIO, server: RunningServer) -> None:
        self._out = out
        self._server = server
        print_server(Console(stderr=True), server)

    def report(self, report: SessionReport) -> None:
        """Print the session's line."""
        print_json(report.as_json(), self._out)

    def summary(self, reports: Sequence[SessionReport]) -> None:
        """Print the total line."""
        print_json(total_json(reports, self._server.url), self._out)


def print_server(console: Console, server: RunningServer) -> None:
    """Print which server is used."""
    console.print(f"server: {server.url} ({server.origin})", highlight=False, soft_wrap=True)


def print_json(value: Mapping[str, object], out: TextIO) -> None:
    """Print a line of JSON."""
    print(json.dumps(value, ensure_ascii=False), file=out, flush=True)


class LiveShow(Show[R]):
    """Shows a progress bar and the latest calls of each of `sides` during the replay."""

    def __init__(self, console: Console, server: RunningServer, recordings: Sequence[Recording], sides: int) -> None:
        self.console = console
        self.title = ""
        self.calls: tuple[deque[CallReport], ...] = tuple(deque(maxlen=50) for _ in range(sides))
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._task = self._progress.add_task("calls", total=sides * sum(recording.calls for recording in recordings))
        self._live = Live(console=console, get_renderable=self._now, transient=True, refresh_per_second=8)
        self._due = self._done = 0
        print_server(console, server)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    @abstractmethod
    def latest(self) -> Table:
        """Return a table of the latest calls."""

    def start(self, recording: Recording) -> None:
        """Start the recording's table."""
        for calls in self.calls:
            calls.clear()
        self.title = recording.id
        self._due += len(self.calls) * recording.calls

    def call(self, call: CallReport, side: int = 0) -> None:
        """Add the call to the table."""
        self.calls[side].append(call)
        self._done += 1
        self._progress.update(self._task, completed=self._done)

    def report(self, report: R) -> None:
        """Count failed calls as done, too."""
        self._done = self._due
        self._progress.update(self._task, completed=self._done)

    def finish(self, table: Table, lines: Sequence[str]) -> None:
        """End the live table; print the final one and the lines after it."""
        self._live.stop()
        self.console.print(table)
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _now(self) -> RenderableType:
        return Group(self.latest(), self._progress)


class LiveTable(LiveShow[SessionReport]):
    """Shows the latest calls, then a summary."""

    def __init__(self, console: Console, server: RunningServer, recordings: Sequence[Recording]) -> None:
        super().__init__(console, server, recordings, sides=1)

    def latest(self) -> Table:
        """Return a table of the session's latest calls."""
        headings = ("call", "context", "target", "epoch", "left out", "saved", "cache", "billed", "everything")
        table = table_of(headings, title=self.title)
        for call in list(self.calls[0])[-CALLS_SHOWN:]:
            table.add_row(
                str(call.number),
                f"{call.estimate:,}",
                f"{call.target:,}",
                str(call.epoch),
                dispositions(call.left_out),
                f"{call.saved_tokens:,}",
                f"{call.bill.read_share:.0%}",
                f"{call.bill.billed:,.0f}",
                f"{call.everything.billed:,.0f}",
            )
        return table

    def summary(self, reports: Sequence[SessionReport]) -> None:
        """Print the sessions, the total and the failures."""
        self.finish(_summary_table(reports), closing_lines(reports))


def _summary_table(reports: Sequence[SessionReport]) -> Table:
    """Return a table with a row for each session and, if there are several, their total."""
    headings = ("session", "calls", "window", "largest", "epochs", "left out", "cache", "billed", "against")
    table = table_of(headings, caption="billed: input-token equivalents; against: compared with sending everything")
    for report in reports:
        last = report.calls[-1].left_out if report.calls else {}
        table.add_row(
            report.id,
            _calls(len(report.calls), len(report.failures)),
            "-" if report.window_tokens is None else f"{report.window_tokens:,}",
            largest(report),
            str(report.epochs),
            dispositions(last),
            *_money(report.bill, report.everything),
        )
    if len(reports) > 1:
        calls = sum(len(report.calls) for report in reports)
        failures = sum(len(report.failures) for report in reports)
        table.add_row("total", _calls(calls, failures), "", "", "", "", *_money(*totals(reports)), style="bold")
    return table


def closing_lines(reports: Sequence[SessionReport]) -> list[str]:
    """Return lines with the notes, the first failures, the number of others, and whether the logs are complete."""
    lines = [f"note: {report.id}: {note}" for report in reports for note in report.notes]
    failures = [(report.id, failure) for report in reports for failure in report.failures]
    for id, failure in failures[:_FAILURES_SHOWN]:
        lines.append(f"failed: {id}: {failure.where}: {failure.type}: {failure.detail}")
    if len(failures) > _FAILURES_SHOWN:
        lines.append(f"... and {len(failures) - _FAILURES_SHOWN} more failures")
    if not failures:
        events = sum(report.events for report in reports)
        lines.append(f"every context within its target; all {events:,} events in the log as they were appended")
    return lines


def dispositions(counts: Mapping[str, int]) -> str:
    """Return the counts as text, such as `40 dropped, 12 stubbed`."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "-"


def largest(report: SessionReport) -> str:
    """Return the size of the session's largest context as text."""
    return f"{max((call.estimate for call in report.calls), default=0):,}"


def percent(difference: float | None) -> str:
    """Return a relative difference as text."""
    return "-" if difference is None else f"{difference:+.1%}"


def table_of(headings: Sequence[str], *, title: str | None = None, caption: str | None = None) -> Table:
    """Return a table in which text may wrap, so that figures need not on a terminal of 80 columns."""
    table = Table(
        box=None, padding=(0, 1, 0, 0), title=title, title_justify="left", caption=caption, caption_justify="left"
    )
    for heading in headings:
        if heading == "session" or heading.startswith("left out"):
            table.add_column(heading, overflow="fold", min_width=10)
        else:
            table.add_column(heading, justify="right", no_wrap=heading != "calls")
    return table


def _calls(answered: int, failures: int) -> str:
    return f"{answered:,}, {failures:,} failed" if failures else f"{answered:,}"


def _money(bill: Bill, everything: Bill) -> tuple[str, str, str]:
    return f"{bill.read_share:.0%}", f"{bill.billed:,.0f}", percent(relative_difference(bill, everything))
