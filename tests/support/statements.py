"""The statements that Postgres executed, with their values, read from the server's log."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from app.store.dsn import for_asyncpg

_ENTRY = re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+ \S+ \[(\d+)\] ([A-Z]+):  ", re.MULTILINE)
_ASKED = re.compile(r"(?:execute [^:]+|statement): (.*)", re.DOTALL)
_VALUE = re.compile(r"\$\d+ = (NULL|'(?:[^']|'')*')")


@dataclass(frozen=True)
class Statement:
    """A statement executed by the server process `pid`; `values` are SQL literals."""

    pid: int
    sql: str
    values: tuple[str, ...] = ()


class ServerLog:
    """The statements logged since the object was created."""

    def __init__(self, path: Path) -> None:
        self._path, self._start = path, path.stat().st_size

    @classmethod
    async def begin(cls, database_url: str) -> "ServerLog":
        """Make new connections to the database log their statements, and close the servers' open ones, which would not.

        Skip the test if the log cannot be read.
        """
        connection = await asyncpg.connect(for_asyncpg(database_url))
        try:
            name = await connection.fetchval("SELECT current_database()")
            await connection.execute(f"ALTER DATABASE {name} SET log_statement = 'all'")
            await connection.execute(f"ALTER DATABASE {name} SET log_error_verbosity = 'default'")
            await connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'palimpsest' AND pid <> pg_backend_pid()"
            )
            path = Path(await connection.fetchval("SHOW data_directory")) / "log"
        finally:
            await connection.close()
        if not os.access(path, os.R_OK):
            pytest.skip(f"it reads what Postgres logs, and {path} cannot be read here")
        return cls(path)

    def statements(self) -> list[Statement]:
        """Return all statements so far, in order."""
        with self._path.open("rb") as log:
            log.seek(self._start)
            text = log.read().decode()
        entries = list(_ENTRY.finditer(text))
        ends = [*(entry.start() for entry in entries[1:]), len(text)]
        found: list[Statement] = []
        last: dict[int, int] = {}
        for entry, end in zip(entries, ends, strict=True):
            pid, kind = int(entry[1]), entry[2]
            said = text[entry.end() : end].removesuffix("\n").replace("\n\t", "\n")
            if kind == "LOG" and (asked := _ASKED.fullmatch(said)):
                last[pid] = len(found)
                found.append(Statement(pid, asked[1]))
            elif kind == "DETAIL" and said.lower().startswith("parameters: ") and pid in last:
                at = last.pop(pid)
                found[at] = Statement(pid, found[at].sql, tuple(_VALUE.findall(said)))
        return found
