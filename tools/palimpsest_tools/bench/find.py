"""Sessions of agents on this machine: the places, and the files there, the last changed ones first."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from palimpsest_tools.output import counted
from palimpsest_tools.recordings.files import RecordingFile, files_in, read_lines
from palimpsest_tools.recordings.opencode_store import sessions_in_database
from palimpsest_tools.recordings.recording import MalformedRecording, NothingRecorded, Recording

PLACES: Final = {
    "Claude Code": "~/.claude/projects",
    "Codex": "~/.codex/sessions",
    "Gemini CLI": "~/.gemini/tmp",
    "opencode": "~/.local/share/opencode",
}
BAD_LINES_MAX: Final = 20
_UNREADABLE_NAMED: Final = 5


class NoSessions(Exception):
    """There is no session to compare; the message says why, and where agents keep theirs."""


@dataclass(slots=True)
class Sources:
    """The sessions of folders and files, and the parts of them that were not read."""

    paths: Sequence[Path]
    calls_min: int
    read: int = 0
    files: int = 0
    bad_lines: int = 0
    empty: int = 0
    short: int = 0
    unreadable: list[str] = field(default_factory=list)
    agents: Counter[str] = field(default_factory=Counter)

    def sessions(self) -> Iterator[Recording]:
        """Yield the sessions with at least `calls_min` calls. Raises NoSessions for a named file that is no log."""
        found = sorted(files_in(self.paths), key=_changed_at, reverse=True)
        self.files = len(found)
        for file in found:
            self.read += 1
            for recording in self._read(file):
                if recording.calls < self.calls_min:
                    self.short += 1
                else:
                    yield recording

    def _read(self, file: RecordingFile) -> Iterable[Recording]:
        try:
            if file.path.suffix == ".db":
                yield from sessions_in_database(file.path)
                return
            recordings, bad_lines = read_lines(file.path, BAD_LINES_MAX)
        except NothingRecorded:
            self.empty += 1
        except (MalformedRecording, OSError) as error:
            reason = _reason(file.path, error)
            if not file.found:
                raise NoSessions(f"{reason}; {known_formats()}") from None
            self.unreadable.append(reason)
        else:
            self.bad_lines += bad_lines
            yield from recordings

    def notes(self) -> list[str]:
        """Return lines on all that was not read."""
        counts = (
            (self.files - self.read, "older file", "not read: enough sessions (--limit)"),
            (self.short, "session", f"left out: fewer than {self.calls_min} calls (--min-calls)"),
            (self.empty, "log", "left out: no conversation in it"),
            (self.bad_lines, "damaged line", "left out of logs"),
            (len(self.unreadable), "file", "that could not be read:"),
        )
        named = [f"    {reason}" for reason in self.unreadable[:_UNREADABLE_NAMED]]
        rest = len(self.unreadable) - _UNREADABLE_NAMED
        more = [f"    ... and {rest} more"] if rest > 0 else []
        return [*(f"{counted(count, what)} {why}" for count, what, why in counts if count), *named, *more]


def _changed_at(file: RecordingFile) -> float:
    try:
        return file.path.stat().st_mtime
    except OSError:
        return 0.0


def _reason(path: Path, error: MalformedRecording | OSError) -> str:
    if isinstance(error, MalformedRecording):
        line = "" if error.line is None else f":{error.line}"
        return f"{path.name}{line}: {error.detail}"
    return f"{path.name}: {error.strerror or error}"


def default_paths() -> list[Path]:
    """Return the agents' folders on this machine that exist. Raises NoSessions."""
    found = [path for place in PLACES.values() if (path := Path(place).expanduser()).is_dir()]
    if not found:
        raise NoSessions(f"no agent's folder on this machine; {known_places()}")
    return found


def known_places() -> str:
    """Return where agents keep their sessions."""
    return "agents keep their sessions in " + ", ".join(f"{place} ({agent})" for agent, place in PLACES.items())


def known_formats() -> str:
    """Return which files are read."""
    return f"logs of {', '.join(PLACES)} are read, messages for OpenAI, Anthropic or Gemini, and neutral sessions"
