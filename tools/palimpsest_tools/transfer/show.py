"""Output of an import: lines and progress for the user, JSON lines for machines."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """An imported session with the number of its events, and of those that were new on the server."""

    session: str
    events: int
    added: int
    notes: tuple[str, ...]


class ImportShow(ABC):
    """Output of an import, with its counts. A context manager: leaving it restores the terminal."""

    def __init__(self, out: TextIO) -> None:
        self.failures = self.sessions = self.events = self.added = 0
        self.file = Path()
        self._out = out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def start(self, file: Path) -> None:
        """Show that the import of a file starts."""
        self.file = file

    def add(self, events: int) -> None:
        """Show the number of events that were sent since the last call."""
        self.events += events

    def done(self, session: ImportedSession) -> None:
        """Show an imported session."""
        self.sessions += 1
        self.added += session.added
        about = {"session": session.session, "events": session.events, "added": session.added}
        self._show(
            {"file": str(self.file), **about, "notes": list(session.notes)},
            f"{session.session}: {_counted(session.events, 'event')}, {session.added:,} new",
            *(f"  {note}" for note in session.notes),
        )

    def skipped(self, reason: str) -> None:
        """Show the reason why a file holds nothing to import."""
        self._show({"file": str(self.file), "skipped": reason}, f"{self.file}: skipped, {reason}")

    def failed(self, reason: str, line: int | None = None) -> None:
        """Show the reason why a file, or one of its sessions, was not imported."""
        self.failures += 1
        message = f"{self.file}{'' if line is None else f':{line}'}: {reason}"
        self._show({"file": str(self.file), "error": message}, f"palimpsest: {message}", error=True)

    def summary(self) -> None:
        """Show the totals."""
        counts = {"sessions": self.sessions, "events": self.events, "added": self.added, "failures": self.failures}
        failed = f", {self.failures} not imported" if self.failures else ""
        self._show(
            {"total": {"ok": not self.failures, **counts}},
            f"{_counted(self.sessions, 'session')}, {_counted(self.events, 'event')}, {self.added:,} new{failed}",
        )

    @abstractmethod
    def _show(self, record: Mapping[str, object], *lines: str, error: bool = False) -> None:
        """Print a record, or the lines that say the same."""


class ImportLines(ImportShow):
    """Prints one JSON object for each session and each failure, then a total."""

    def _show(self, record: Mapping[str, object], *lines: str, error: bool = False) -> None:
        print(json.dumps(record, ensure_ascii=False), file=self._out, flush=True)


class ImportTable(ImportShow):
    """Prints a line for each session, and shows progress if standard error is a terminal."""

    def __init__(self, out: TextIO, files: int) -> None:
        super().__init__(out)
        console = Console(stderr=True)
        columns = (TextColumn("{task.fields[file]}"), BarColumn(), MofNCompleteColumn(), TextColumn("files,"))
        events = TextColumn("{task.fields[events]:,} events")
        self._progress = Progress(
            *columns, events, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._progress.add_task("", total=files, file="", events=0)
        self._started = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, file: Path) -> None:
        """Show that the import of a file starts."""
        super().start(file)
        self._progress.update(self._task, completed=self._started, file=file.name)
        self._started += 1

    def add(self, events: int) -> None:
        """Show the number of events that were sent since the last call."""
        super().add(events)
        self._progress.update(self._task, events=self.events)

    def _show(self, record: Mapping[str, object], *lines: str, error: bool = False) -> None:
        """Print the lines, above the progress bar if they go to its terminal."""
        for line in lines:
            if not self._progress.disable and (error or self._out.isatty()):
                self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)
            elif error:
                typer.echo(line, err=True)
            else:
                print(line, file=self._out, flush=True)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
