"""Files of recordings: their formats, which are recognized by content, and the ids of their sessions."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from palimpsest_tools.recordings import (
    agent_log,
    chat,
    codex_log,
    gemini_log,
    neutral,
    opencode_log,
    opencode_store,
)
from palimpsest_tools.recordings.checks import numbered_lines, parse_json
from palimpsest_tools.recordings.recording import MalformedRecording, NothingRecorded, Object, Recording

_ID_CHARS_MAX: Final = 128
_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9._:@-]+")
_SUB_AGENTS: Final = "subagents"


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """A file that the user named, or, if `found`, that is in a folder that they named."""

    path: Path
    found: bool = False


def files_in(paths: Iterable[Path]) -> list[RecordingFile]:
    """Return the named files, and the logs at any depth of the named folders, sorted by name.

    Logs are all JSONL files, the JSON files with a chat of Gemini CLI or an export of opencode, and opencode's storage:
    the file of each session, or its database.
    """
    files: list[RecordingFile] = []
    for path in paths:
        if path.is_dir():
            named = sorted({*path.rglob("*.json*"), *path.rglob(opencode_store.DATABASE)})
            found = (one for one in named if one.is_file() and not opencode_store.is_inner(one))
            files += (RecordingFile(one, found=True) for one in found if _is_log(one))
        else:
            files.append(RecordingFile(path))
    return files


def _is_log(path: Path) -> bool:
    """Return whether a file is an agent's log, among JSON files that hold anything else."""
    if path.suffix != ".json":
        return path.suffix in (".jsonl", ".db")
    if opencode_store.is_session_file(path):
        return True
    try:
        document = parse_json(decode(path.read_bytes()))
    except (OSError, MalformedRecording):
        return False
    return gemini_log.is_chat(document) or opencode_log.is_export(document)


def read_file(path: Path, session: str | None) -> tuple[Recording, ...]:
    """Read all sessions of a file, with ids that a server accepts.

    A single session gets the id `session`; the ids of several begin with it. Without it the ids are those in the file,
    else the file's name. Raises OSError or MalformedRecording.
    """
    found = tuple(_stored(path)) or _read_text(path, session, decode(path.read_bytes()))
    if session is not None:
        found = tuple(replace(one, id=_under(session, one.id, alone=len(found) == 1)) for one in found)
    named = tuple(replace(one, id=legal_id(one.id)) for one in found)
    if len({one.id for one in named}) < len(named):
        raise MalformedRecording("two of its sessions have the same id")
    return named


def read_lines(path: Path, bad_lines_max: int) -> tuple[tuple[Recording, ...], int]:
    """Read all sessions of a log of which some lines may be damaged; return them and the number of lines left out.

    Raises OSError or MalformedRecording, also if there are more bad lines.
    """
    if path.suffix != ".jsonl":
        return read_file(path, None), 0
    lines = decode(path.read_bytes()).split("\n")
    for left_out in range(bad_lines_max + 1):
        try:
            found = _read_text(path, None, "\n".join(lines))
            return tuple(replace(one, id=legal_id(one.id)) for one in found), left_out
        except NothingRecorded:
            raise
        except MalformedRecording as malformed:
            if malformed.line is None or left_out == bad_lines_max:
                raise
            lines[malformed.line - 1] = ""
    raise AssertionError("the last attempt returns or raises")


def _stored(path: Path) -> Iterable[Recording]:
    """Return the sessions of opencode's storage; none for any other file."""
    if path.suffix == ".db":
        return opencode_store.sessions_in_database(path)
    return (opencode_store.session_in_folder(path),) if opencode_store.is_session_file(path) else ()


def _read_text(path: Path, session: str | None, text: str) -> tuple[Recording, ...]:
    return parse(text, session or _name(path, text), sub_agents=True)


def legal_id(name: str) -> str:
    """Return the name with a dash for each run of characters that an id may not hold."""
    return _NOT_IN_IDS.sub("-", name)[:_ID_CHARS_MAX] or "-"


def _under(session: str, id: str, *, alone: bool) -> str:
    """Return the id of a session in a file that the user named `session`; sub-agents' ids begin with it already."""
    if alone:
        return session
    return id if id == session or id.startswith(f"{session}.agent-") else f"{session}.{id}"


def _name(path: Path, text: str) -> str:
    """Return the name of a file's session, which is the file's; a sub-agent's begins with its parent session's.

    Ids of sub-agents are only unique within their session. A session's folder has its name; older agents put both logs
    into one folder.
    """
    if not path.stem.startswith("agent-"):
        return path.stem
    folders = path.absolute().parts[:-1]
    if _SUB_AGENTS in folders[1:]:
        innermost = len(folders) - 1 - folders[::-1].index(_SUB_AGENTS)
        return f"{folders[innermost - 1]}.{path.stem}"
    parent = agent_log.started_by(text) if path.suffix == ".jsonl" else None
    return path.stem if parent is None else f"{parent}.{path.stem}"


def decode(data: bytes) -> str:
    """Return the text of a file, which must be UTF-8 with or without a byte order mark. Raises MalformedRecording."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MalformedRecording(f"not UTF-8: {error.reason}", line=line) from None


def parse(text: str, id: str, *, sub_agents: bool = False) -> tuple[Recording, ...]:
    """Read all sessions of a text; `id` names the session of a format without ids.

    A log of Claude Code gives only the main session, unless `sub_agents` is true or the log is a sub-agent's own.
    Raises MalformedRecording; no part of a malformed file is sent.
    """
    first = _first_line_object(text)
    if first is None:
        if not text.strip():
            raise MalformedRecording("the file is empty")
        return (_of_document(text, id),)
    if neutral.is_neutral(first):
        return tuple(
            neutral.recording(parse_json(line, first_line=number), number) for number, line in numbered_lines(text)
        )
    if codex_log.is_rollout(first):
        return (codex_log.recording(text, id),)
    if gemini_log.is_chat(first):
        return (gemini_log.recording(text, id),)
    if agent_log.is_agent_log(first):
        found = agent_log.recordings(text, id)
        main = tuple(one for one in found if one.id == id)
        return found if sub_agents or not main else main
    return (_of_document(text, id),)


def _of_document(text: str, id: str) -> Recording:
    """Read a text that is one JSON document. Raises MalformedRecording."""
    document = parse_json(text)
    if gemini_log.is_chat(document):
        return gemini_log.recording(text, id)
    if opencode_log.is_export(document):
        return opencode_log.recording(document, id)
    return chat.recording(document, id)


def _first_line_object(text: str) -> Object | None:
    """Return the first line as an object; None if the line alone is not one."""
    _, line = next(numbered_lines(text), (0, ""))
    try:
        value = parse_json(line)
    except MalformedRecording:
        return None
    return value if isinstance(value, dict) else None
