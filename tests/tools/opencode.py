"""opencode's own storage, made of the sample of its export: the folder of JSON files, and the database."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

EXPORT = Path(__file__).parents[1] / "samples" / "opencode_export.json"


def export() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(EXPORT.read_text(encoding="utf-8"))
    return document


def write_folder(root: Path) -> Path:
    """Write the storage as opencode had it before version 1.2; return the session's file."""
    document = export()
    id = document["info"]["id"]
    for number, message in enumerate(document["messages"]):
        name = f"msg_{number:04}"
        _write(root / "storage" / "message" / id / f"{name}.json", {**message["info"], "id": name})
        for index, part in enumerate(message["parts"]):
            _write(root / "storage" / "part" / name / f"prt_{index:04}.json", part)
    return _write(root / "storage" / "session" / "project1" / f"{id}.json", document["info"])


def write_database(file: Path) -> Path:
    """Write the tables that opencode has since version 1.2, with the columns that matter."""
    document = export()
    id = document["info"]["id"]
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE session (id TEXT PRIMARY KEY, time_updated INTEGER)")
        database.execute("CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER, data TEXT)")
        database.execute("CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, data TEXT)")
        database.execute("INSERT INTO session VALUES (?, 1)", (id,))
        for number, message in enumerate(document["messages"]):
            row = (f"msg_{number:04}", id, number, json.dumps(message["info"]))
            database.execute("INSERT INTO message VALUES (?, ?, ?, ?)", row)
            for index, part in enumerate(message["parts"]):
                row_of_part = (f"prt_{number:04}_{index:04}", f"msg_{number:04}", id, json.dumps(part))
                database.execute("INSERT INTO part VALUES (?, ?, ?, ?)", row_of_part)
    return file


def _write(file: Path, value: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value), encoding="utf-8")
    return file
