"""Files with recordings: which they are, what their sessions are called, and what is in them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from app.recordings import agent_log
from app.recordings.load import decode, parse
from app.recordings.recording import MalformedRecording, Recording

_ID_CHARS_MAX: Final = 128
_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9._:@-]+")
_SUB_AGENTS: Final = "subagents"


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """A file that was named, or found in a folder that was."""

    path: Path
    found: bool = False


def files_in(paths: Iterable[Path]) -> list[RecordingFile]:
    """The files named, and of folders all JSONL files in them, however deep, in the order of their names."""
    files: list[RecordingFile] = []
    for path in paths:
        if path.is_dir():
            files += (RecordingFile(one, found=True) for one in sorted(path.rglob("*.jsonl")) if one.is_file())
        else:
            files.append(RecordingFile(path))
    return files


def read_file(path: Path, session: str | None) -> tuple[Recording, ...]:
    """Read every session of a file, under ids that sessions of a server may have.

    `session` is the id if there is one session, and the beginning of the ids if there are several. Without it, sessions
    are called as the file calls them, or else as the file itself is called. Raises OSError, MalformedRecording.
    """
    text = decode(path.read_bytes())
    found = parse(text, session or _name(path, text), sub_agents=True)
    if session is not None:
        found = tuple(replace(one, id=_under(session, one.id, alone=len(found) == 1)) for one in found)
    named = tuple(replace(one, id=legal_id(one.id)) for one in found)
    if len({one.id for one in named}) < len(named):
        raise MalformedRecording("two of its sessions have the same id")
    return named


def legal_id(name: str) -> str:
    """The name with a dash for all that no session's id may hold."""
    return _NOT_IN_IDS.sub("-", name)[:_ID_CHARS_MAX] or "-"


def _under(session: str, id: str, *, alone: bool) -> str:
    """The id of a session in a file whose session was given a name; sub-agents have theirs from it already."""
    if alone:
        return session
    return id if id == session or id.startswith(f"{session}.agent-") else f"{session}.{id}"


def _name(path: Path, text: str) -> str:
    """The name of a file's session: the file's. A sub-agent's begins with that of the session that started it.

    Ids of sub-agents are only unique within their session. Its folder is named after it; older agents put both logs
    side by side.
    """
    if not path.stem.startswith("agent-"):
        return path.stem
    folders = path.absolute().parts[:-1]
    if _SUB_AGENTS in folders[1:]:
        innermost = len(folders) - 1 - folders[::-1].index(_SUB_AGENTS)
        return f"{folders[innermost - 1]}.{path.stem}"
    parent = agent_log.started_by(text) if path.suffix == ".jsonl" else None
    return path.stem if parent is None else f"{parent}.{path.stem}"
