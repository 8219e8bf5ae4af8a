"""Test databases: on the embedded Postgres, on the server that `--database-url` names, or on a Citus cluster."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Final
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from app.store import embedded, migrate
from app.store.dsn import for_asyncpg, normalize
from app.store.engine import Database
from tests.citus import nodes
from tests.support import pooler
from tests.support.folders import data_folder

FAST_SETTINGS: Final = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB"}
"""Settings for speed: no data outlives the run, and small buffers make dropping a database cheap."""
PREFIX: Final = f"palimpsest_test_{uuid4().hex[:8]}"
"""The prefix of this process's database names; other processes may use the same server."""
SHARDS: Final = 4
DROPS_MAX: Final = 6
NOT_DISTRIBUTED: Final[dict[str, str]] = {
    "tests/contract/store/test_tenant_isolation.py::test_no_statement_loses_an_index_by_row_security": (
        "reads plans of one Postgres; the coordinator's say what goes to which shard, which tests/citus looks at"
    ),
    "tests/contract/events/test_reconcile.py::test_continuing_a_conversation_executes_four_statements": (
        "counts the statements of one Postgres; where there are shards, an append is more of them"
    ),
    "tests/contract/calls/test_outcome.py::test_a_report_of_a_process_that_made_the_call_is_one_statement": (
        "counts the statements of one Postgres; where there are shards, a report is more of them"
    ),
}
"""Tests, or modules of tests, that cannot run on a distributed database, with the reason."""
_numbers = itertools.count(1)


_SETTINGS: Final = """
SELECT split_part(one, '=', 1) || ' = ' || quote_literal(substr(one, strpos(one, '=') + 1)) AS setting
FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase, unnest(setconfig) one
WHERE datname = $1 AND setrole = 0
"""
_copies: Final[dict[str, "Copies"]] = {}
"""Makers of databases, by the URL of their server."""


def add_options(parser: pytest.Parser) -> None:
    """Add the options that choose the test databases."""
    parser.addoption("--pooler", action="store_true", help="have servers and workers go through a PgBouncer")
    parser.addoption("--database-url", help="the Postgres to make databases on, with a superuser's login")
    parser.addoption("--citus", action="store_true", help="have each database distributed over Citus' nodes")


def select_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that use a database when an option names one, and skip those that cannot run there.

    Raises UsageError for options that exclude each other and for missing prerequisites.
    """
    ways = [way for way in ("--pooler", "--database-url", "--citus") if config.getoption(way) not in (None, False)]
    if not ways:
        return
    if len(ways) > 1:
        raise pytest.UsageError(f"{' and '.join(ways)} do not go together")
    absent = {"--pooler": None if pooler.PROGRAM else pooler.ABSENT, "--citus": nodes.missing()}.get(ways[0])
    if absent:
        raise pytest.UsageError(absent)
    if ways[0] == "--database-url":
        try:
            normalize(config.getoption("--database-url"))
        except ValueError as error:
            raise pytest.UsageError(f"--database-url {error}") from error
    left_out = {"--pooler": pooler.NOT_POOLED, "--citus": NOT_DISTRIBUTED}.get(ways[0], {})
    for item in items:
        for name, reason in left_out.items():
            if item.nodeid.split("[")[0] == name or item.nodeid.startswith(f"{name}::"):
                item.add_marker(pytest.mark.skip(reason=reason))
        marker = item.get_closest_marker("embedded") if ways[0] != "--pooler" else None
        if marker:
            item.add_marker(pytest.mark.skip(reason=f"of the embedded Postgres: {marker.args[0]}"))
    using = [item for item in items if _uses_a_database(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _uses_a_database(item)])
    items[:] = using


def _uses_a_database(item: pytest.Item) -> bool:
    return "postgres" in getattr(item, "fixturenames", ()) or item.get_closest_marker("embedded") is not None


@contextmanager
def server(config: pytest.Config) -> Iterator[str]:
    """Run the server of this process's test databases until the block ends, and yield its URL."""
    if config.getoption("--citus"):
        with nodes.running(workers=2) as cluster:
            url = normalize(cluster.url("postgres"))
            _copies[url] = DistributedCopies(cluster)
            yield url
    elif named := config.getoption("--database-url"):
        url = normalize(named)
        _copies[url] = Copies(url, strategy="WAL_LOG")  # FILE_COPY forces slow checkpoints on a server that syncs
        yield url
    else:
        with data_folder() as folder:
            running = embedded.start(folder, {**embedded.OPTIONS, **FAST_SETTINGS})
            _copies[running.url] = Copies(running.url, strategy="FILE_COPY")
            with pooler.pooler_for_all(running.url) if config.getoption("--pooler") else nullcontext():
                yield running.url
            running.stop()


@asynccontextmanager
async def template(postgres: str) -> AsyncIterator[str]:
    """Yield the name of a migrated database that tests copy."""
    databases = _copies[postgres]
    try:
        yield await databases.template()
    finally:
        await databases.close()


def migrated(postgres: str, template: str) -> AbstractAsyncContextManager[str]:
    """Yield the URL of a migrated, empty database, dropped when the block ends."""
    return _copies[postgres].migrated(template)


@asynccontextmanager
async def unmigrated(postgres: str) -> AsyncIterator[str]:
    """Yield the URL of a database without tables, dropped when the block ends."""
    connection = await asyncpg.connect(for_asyncpg(postgres))
    name = _unused_name()
    await connection.execute(f"CREATE DATABASE {name}")
    try:
        yield _at(postgres, name)
    finally:
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await connection.close()


def _unused_name() -> str:
    return f"{PREFIX}_{next(_numbers)}"


def _at(url: str, database: str) -> str:
    return make_url(url).set(database=database).render_as_string(hide_password=False)


class Copies:
    """Copies of a migrated template database, on one server or on every node of a cluster."""

    def __init__(self, *servers: str, strategy: str) -> None:
        self._servers, self._strategy, self._template = servers, strategy, _unused_name()
        # Connections are kept: opening one for each database costs as much as half a copy.
        self._administrators: list[asyncpg.Pool] = []
        self._settings: dict[str, list[str]] = {}

    async def template(self) -> str:
        """Create the migrated template database and return its name."""
        for url in map(for_asyncpg, self._servers):
            pool = asyncpg.create_pool(url, min_size=0, max_inactive_connection_lifetime=0)
            self._administrators.append(await pool)
        await self._run(f"CREATE DATABASE {self._template}")
        await self._prepare(self._template, _at(self._servers[0], self._template))
        return self._template

    async def _prepare(self, name: str, url: str) -> None:
        await migrate.upgrade(url)

    @asynccontextmanager
    async def migrated(self, template: str) -> AsyncIterator[str]:
        """Yield the URL of a copy, dropped when the block ends."""
        if template not in self._settings:
            await self._disconnect_all(template)
        name = _unused_name()
        await self._run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY {self._strategy}")
        for setting in self._settings[template]:
            await self._run(f"ALTER DATABASE {name} SET {setting}")
        try:
            yield _at(self._servers[0], name)
        finally:
            await self._run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")  # a Citus daemon may connect
            await self._drop(name)

    async def _drop(self, name: str) -> None:
        for left in reversed(range(DROPS_MAX)):
            try:
                await self._run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
                return
            except asyncpg.ObjectInUseError:  # a Citus daemon may take more than five seconds to end
                if not left:
                    raise

    async def _disconnect_all(self, template: str) -> None:
        """Close all connections to a database and refuse new ones: Postgres copies no database that is in use."""
        await self._run(f"ALTER DATABASE {template} ALLOW_CONNECTIONS false")
        await self._run(f"SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE datname = '{template}'")
        found = await self._administrators[0].fetch(_SETTINGS, template)
        self._settings[template] = [row["setting"] for row in found]  # settings are not copied with the database

    async def close(self) -> None:
        """Drop the template and close the connections."""
        await self._run(f"DROP DATABASE IF EXISTS {self._template} WITH (FORCE)")
        for administrators in self._administrators:
            await administrators.close()

    async def _run(self, statement: str) -> None:
        await asyncio.gather(*(administrators.execute(statement) for administrators in self._administrators))


class DistributedCopies(Copies):
    """Databases distributed over Citus nodes.

    A shard has the same name in a copy, so copying the database on every node copies all of it.
    """

    def __init__(self, cluster: nodes.Cluster) -> None:
        super().__init__(*map(normalize, cluster.urls("postgres")), strategy="FILE_COPY")
        self._cluster = cluster

    async def _prepare(self, name: str, url: str) -> None:
        from app.wings.shards import distribute

        await self._cluster.join(name)
        await migrate.upgrade(url)
        await distribute.distribute(url, SHARDS)


async def tables_containing(database: Database, text: str) -> set[str]:
    """Return the tables that contain a text, also as bytes."""
    found = set()
    for table in await database.fetch(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables "
        "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    ):
        rows = await database.fetch(f"SELECT t::text AS row FROM {table['name']} t")
        if any(text in row["row"] or text.encode().hex() in row["row"] for row in rows):
            found.add(table["name"])
    return found
