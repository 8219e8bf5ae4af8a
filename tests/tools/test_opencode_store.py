"""opencode's own storage gives the same session as its export."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from palimpsest_tools.recordings.files import decode, files_in, parse, read_file
from palimpsest_tools.recordings.opencode_store import sessions_in_database
from palimpsest_tools.recordings.recording import MalformedRecording, Recording
from tests.tools import opencode


@pytest.fixture
def exported() -> Recording:
    (found,) = parse(decode(opencode.EXPORT.read_bytes()), "sample")
    return found


def test_the_folder_gives_what_the_export_gives(tmp_path: Path, exported: Recording) -> None:
    file = opencode.write_folder(tmp_path)
    assert [one.path for one in files_in([tmp_path])] == [file]
    assert read_file(file, None) == (exported,)


def test_the_database_gives_what_the_export_gives(tmp_path: Path, exported: Recording) -> None:
    file = opencode.write_database(tmp_path / "opencode.db")
    assert [one.path for one in files_in([tmp_path])] == [file]
    assert tuple(sessions_in_database(file)) == read_file(file, None) == (exported,)
    assert [one.name for one in tmp_path.iterdir()] == ["opencode.db"], "only read"


def test_damaged_parts_are_counted(tmp_path: Path) -> None:
    file = opencode.write_folder(tmp_path)
    part = next((tmp_path / "storage" / "part" / "msg_0000").iterdir())
    part.write_text('{"type": "te')
    (found,) = read_file(file, None)
    assert found.notes[-1] == "1 file(s) of the storage cannot be read"
    store = opencode.write_database(tmp_path / "opencode.db")
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("UPDATE part SET data = '[' WHERE message_id = 'msg_0000'")
    (found,) = sessions_in_database(store)
    assert found.notes[-1].endswith("row(s) of the storage cannot be read")


@pytest.mark.parametrize("content", [b"no database at all, but long enough" * 9, b""])
def test_another_database_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "opencode.db"
    file.write_bytes(content)
    with pytest.raises(MalformedRecording, match="not a database that opencode writes"):
        read_file(file, None)
