"""What a replay prints: a live table and a summary for people, JSON lines for machines."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.recordings.recording import Recording
from app.remote.server import RunningServer
from app.replay.bill import Bill
from app.replay.report import CallReport, SessionReport, relative_difference, total_json, totals

_CALLS_SHOWN: Final = 12
_FAILURES_SHOWN: Final = 20


class Show(Protocol):
    """Shows a replay while it runs. A context manager: leaving it restores the terminal."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def begins(self, recording: Recording) -> None:
        """Show that a recording starts."""

    def called(self, call: CallReport) -> None:
        """Show a context that was answered."""

    def ended(self, report: SessionReport) -> None:
        """Show a recording that was replayed."""

    def summary(self, reports: Sequence[SessionReport]) -> None:
        """Show the results of all recordings."""


class JsonLines:
    """Prints one JSON object for each session, then a total."""

    def __init__(self, out: TextIO, server: RunningServer) -> None:
        self._out = out
        self._server = server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def begins(self, recording: Recording) -> None:
        """Nothing to print."""

    def called(self, call: CallReport) -> None:
        """Nothing to print."""

    def ended(self, report: SessionReport) -> None:
        """Print the session's line."""
        self._line(report.as_json())

    def summary(self, reports: Sequence[SessionReport]) -> None:
        """Print the total line."""
        self._line(total_json(reports, self._server.url))

    def _line(self, value: Mapping[str, object]) -> None:
        print(json.dumps(value, ensure_ascii=False), file=self._out, flush=True)


class LiveTable:
    """Shows a progress bar and the latest calls while it runs, then a summary."""

    def __init__(self, console: Console, server: RunningServer, recordings: Sequence[Recording]) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._task = self._progress.add_task("calls", total=sum(recording.calls for recording in recordings))
        self._calls: deque[CallReport] = deque(maxlen=_CALLS_SHOWN)
        self._title = ""
        self._live = Live(console=console, get_renderable=self._now, transient=True, refresh_per_second=8)
        self._due = self._done = 0
        console.print(f"server: {server.url} ({server.origin})", highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begins(self, recording: Recording) -> None:
        """Start the session's table."""
        self._calls.clear()
        self._title = recording.id
        self._due += recording.calls

    def called(self, call: CallReport) -> None:
        """Add the call to the table."""
        self._calls.append(call)
        self._done += 1
        self._progress.update(self._task, completed=self._done)

    def ended(self, report: SessionReport) -> None:
        """Count failed calls as done, too."""
        self._done = self._due
        self._progress.update(self._task, completed=self._done)

    def summary(self, reports: Sequence[SessionReport]) -> None:
        """Print the sessions, the total, and what failed."""
        self._live.stop()
        self._console.print(summary_table(reports))
        for line in closing_lines(reports):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _now(self) -> RenderableType:
        return Group(calls_table(self._title, self._calls), self._progress)


def calls_table(title: str, calls: Sequence[CallReport]) -> Table:
    """A table of a session's latest calls."""
    headings = ("call", "context", "target", "epoch", "left out", "saved", "cache", "billed", "everything")
    table = _table(headings, title=title)
    for call in calls:
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


def summary_table(reports: Sequence[SessionReport]) -> Table:
    """A table with a row for each session and, if there are several, their total."""
    headings = ("session", "calls", "window", "largest", "epochs", "left out", "cache", "billed", "against")
    table = _table(headings, caption="billed: input-token equivalents; against: compared with sending everything")
    for report in reports:
        last = report.calls[-1].left_out if report.calls else {}
        table.add_row(
            report.id,
            _calls(len(report.calls), len(report.failures)),
            "-" if report.window_tokens is None else f"{report.window_tokens:,}",
            f"{max((call.estimate for call in report.calls), default=0):,}",
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
    """Lines with the notes, the first failures and the number of others, and whether the logs are complete."""
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
    """The counts as text, such as `40 dropped, 12 stubbed`."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "-"


def _table(headings: Sequence[str], *, title: str | None = None, caption: str | None = None) -> Table:
    """A table in which text may wrap, so that figures need not on a terminal of 80 columns."""
    table = Table(
        box=None, padding=(0, 1, 0, 0), title=title, title_justify="left", caption=caption, caption_justify="left"
    )
    for heading in headings:
        if heading in ("session", "left out"):
            table.add_column(heading, overflow="fold", min_width=10)
        else:
            table.add_column(heading, justify="right", no_wrap=heading != "calls")
    return table


def _calls(answered: int, failures: int) -> str:
    return f"{answered:,}, {failures:,} failed" if failures else f"{answered:,}"


def _money(bill: Bill, everything: Bill) -> tuple[str, str, str]:
    difference = relative_difference(bill, everything)
    return (
        f"{bill.read_share:.0%}",
        f"{bill.billed:,.0f}",
        "-" if difference is None else f"{difference:+.1%}",
    )
