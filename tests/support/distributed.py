"""Databases over Citus' nodes for tests: distributed once, emptied after each test, and used again.

Citus does not let a database be copied, and to distribute one takes seconds; to empty it takes a tenth of one.
"""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import pytest

from app.store import distribute, migrate
from app.store.dsn import checked, for_asyncpg
from tests.citus.nodes import Cluster

SHARDS: Final = 4
EMPTY: Final = "an empty database"
NOT_DISTRIBUTED: Final[dict[str, str]] = {}
"""The tests that cannot be run on a distributed database, or files of them, with the reason."""

_END_OTHERS: Final = """
SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# A test that changed more than rows leaves another one of these, and its database is not used again.
_SHAPE: Final = """
SELECT md5(string_agg(name, ' ' ORDER BY name)) FROM (
    SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT tgname || tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT setconfig::text FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
    WHERE datname = current_database()
) AS shape (name)
"""


class Distributed:
    """The databases of a process on its own cluster."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self._cluster, self._prefix = cluster, prefix
        self._numbers = itertools.count(1)
        self._free: list[Emptied] = []

    async def template(self) -> str:
        """Return what stands for a template: there is none."""
        return EMPTY

    @asynccontextmanager
    async def migrated(self, template: str) -> AsyncIterator[str]:
        """The URL of a distributed database without rows of a test. The test is skipped that wants a copy."""
        if template != EMPTY:
            pytest.skip("it copies a filled database, and Citus lets none be copied")
        database = self._free.pop() if self._free else await self._make()
        yield database.url  # one that a block leaves with an exception is not used again
        if await database.empty():
            self._free.append(database)
        else:
            await self._cluster.drop(database.name)

    async def close(self) -> None:
        """Leave all to the cluster's end."""

    async def _make(self) -> "Emptied":
        name = f"{self._prefix}_{next(self._numbers)}"
        url = checked(await self._cluster.make(name))
        await migrate.upgrade(url)
        connection = await _connect(url)
        try:
            async with connection.transaction():
                await distribute.lay_out(connection, SHARDS)
        finally:
            await connection.close()
        database = Emptied(name, url)
        await database.remember()
        return database


class Emptied:
    """A distributed database that can be made as it was before it was used."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self._shape = ""
        self._tables: list[str] = []
        self._rows: dict[str, str] = {}

    async def remember(self) -> None:
        """Keep its shape, and the rows that migrations put there."""
        connection = await _connect(self.url)
        where = await distribute.tables(connection)
        self._shape = await connection.fetchval(_SHAPE)
        self._tables = [name for name in (*where.sharded, *where.copied, *where.local) if name != "alembic_version"]
        for name in self._tables:
            rows = await connection.fetchval(f"SELECT jsonb_agg(to_jsonb(t)) FROM {name} t")
            if rows is not None:
                self._rows[name] = rows
        await connection.close()

    async def empty(self) -> bool:
        """End what is connected to it and take the rows away; False where it has another shape now."""
        connection = await _connect(self.url)
        try:
            await connection.execute(_END_OTHERS)
            if await connection.fetchval(_SHAPE) != self._shape:
                return False
            async with connection.transaction():
                await connection.execute("SET LOCAL session_replication_role = replica")  # the log is immutable
                await connection.execute(f"TRUNCATE {', '.join(self._tables)} RESTART IDENTITY")
                for name, rows in self._rows.items():
                    into = f"INSERT INTO {name} SELECT * FROM jsonb_populate_recordset(NULL::{name}, $1)"
                    await connection.execute(into, rows)
            return True
        finally:
            await connection.close()


async def _connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(for_asyncpg(url), statement_cache_size=0)
