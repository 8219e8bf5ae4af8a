"""opencode's own storage: a folder of JSON files, or since version 1.2 a SQLite database. Both are only read.

The folder has `session/<project>/<id>.json`, `message/<session>/<id>.json` and `part/<message>/<id>.json`; the database
has tables of these names with the same objects in the column `data`. A session becomes the object that opencode's
export would have written.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from app.core.log.events import Json
from palimpsest_tools.recordings import opencode_log
from palimpsest_tools.recordings.checks import parse_json
from palimpsest_tools.recordings.recording import MalformedRecording, NothingRecorded, Object, Recording

DATABASE: Final = "opencode*.db"
_INNER: Final = frozenset({"message", "part", "session_diff", "project", "todo"})
"""Folders of the storage whose files are no sessions."""


def is_inner(path: Path) -> bool:
    """Return whether a file belongs to opencode's storage and is no session."""
    return any(
        folder.name in _INNER and (folder.parent / "session").is_dir() and (folder.parent / "message").is_dir()
        for folder in list(path.parents)[:2]
    )


def is_session_file(path: Path) -> bool:
    """Return whether a file is a session in opencode's folder of JSON files."""
    session, storage = path.parent.parent, path.parent.parent.parent
    return path.suffix == ".json" and session.name == "session" and (storage / "message").is_dir()


def session_in_folder(path: Path) -> Recording:
    """Read the session of a file in the folder. Raises OSError or MalformedRecording."""
    lost: Counter[str] = Counter()
    storage, info = path.parent.parent.parent, _object(path, lost) or {}
    id = str(info.get("id") or path.stem)
    messages = [
        {"info": message, "parts": list(_objects(storage / "part" / file.stem, lost))}
        for file in _files(storage / "message" / id)
        if (message := _object(file, lost)) is not None
    ]
    return _recording(id, messages, lost)


def _files(folder: Path) -> list[Path]:
    """Return the JSON files in a folder by name; the names ascend with time."""
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def _objects(folder: Path, lost: Counter[str]) -> Iterator[Object]:
    for file in _files(folder):
        found = _object(file, lost)
        if found is not None:
            yield found


def _object(file: Path, lost: Counter[str]) -> Object | None:
    """Return a file's object. One that cannot be read is counted, as a file that opencode is writing."""
    try:
        value = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, MalformedRecording):
        value = None
    if isinstance(value, dict):
        return value
    lost["file"] += 1
    return None


def sessions_in_database(path: Path) -> Iterator[Recording]:
    """Read the sessions of a database, the last changed ones first. Raises MalformedRecording."""
    journal = path.with_name(f"{path.name}-wal")
    # Without a journal nothing else writes the database; then SQLite needs no file of its own to read it.
    how = "mode=ro" if journal.exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True)) as database:
            ids = [id for (id,) in database.execute("SELECT id FROM session ORDER BY time_updated DESC, id DESC")]
            for id in ids:
                lost: Counter[str] = Counter()
                try:
                    yield _recording(str(id), _rows(database, str(id), lost), lost)
                except NothingRecorded:
                    continue
    except sqlite3.Error as error:
        raise MalformedRecording(f"not a database that opencode writes: {error}") from None


def _rows(database: sqlite3.Connection, session: str, lost: Counter[str]) -> list[dict[str, Any]]:
    parts: dict[str, list[Object]] = {}
    stored = database.execute("SELECT message_id, data FROM part WHERE session_id = ? ORDER BY id", (session,))
    for message, data in stored:
        if (part := _value(data, lost)) is not None:
            parts.setdefault(message, []).append(part)
    rows = database.execute("SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id", (session,))
    return [{"info": info, "parts": parts.get(id, [])} for id, data in rows if (info := _value(data, lost)) is not None]


def _value(data: Json, lost: Counter[str]) -> Object | None:
    try:
        value = parse_json(data) if isinstance(data, str) else None
    except MalformedRecording:
        value = None
    if isinstance(value, dict):
        return value
    lost["row"] += 1
    return None


def _recording(id: str, messages: list[dict[str, Any]], lost: Counter[str]) -> Recording:
    found = opencode_log.recording({"info": {"id": id}, "messages": messages}, id)
    notes = tuple(f"{count} {kind}(s) of the storage cannot be read" for kind, count in lost.items())
    return replace(found, notes=(*found.notes, *notes))
