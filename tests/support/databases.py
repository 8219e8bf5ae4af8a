"""The tests' databases: on the embedded Postgres, on the server that `--database-url` names, or over Citus' nodes."""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Final, Protocol
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from app.store import embedded, migrate
from app.store.dsn import checked, for_asyncpg
from tests.citus import nodes
from tests.support import distributed, pooler
from tests.support.folders import data_folder

IN_HASTE: Final = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB"}
"""Nothing need outlive the machine; and every database that goes is looked for in all of the buffers."""
PREFIX: Final = f"palimpsest_test_{uuid4().hex[:8]}"
"""How the names of this process's databases begin: others may use the same server."""
_numbers = itertools.count(1)


class Databases(Protocol):
    """Migrated, empty databases of one server."""

    async def template(self) -> str:
        """Make a migrated database to copy, and return its name."""

    def migrated(self, template: str) -> AbstractAsyncContextManager[str]:
        """Return a context with the URL of a copy that goes when the block ends."""

    async def close(self) -> None:
        """Leave nothing behind."""


_servers: Final[dict[str, Databases]] = {}
"""Those in use, by the server's URL."""


def add_options(parser: pytest.Parser) -> None:
    """Add the options that say where the tests' databases are."""
    parser.addoption("--pooler", action="store_true", help="have servers and workers go through a PgBouncer")
    parser.addoption("--database-url", help="the Postgres to make databases on, with a superuser's login")
    parser.addoption("--citus", action="store_true", help="have each database distributed over Citus' nodes")


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where an option names a database: keep the tests that use one, and leave out for its reason what cannot there.

    Raises UsageError for options that do not go together, and where what they need is absent.
    """
    ways = [way for way in ("--pooler", "--database-url", "--citus") if config.getoption(way)]
    if not ways:
        return
    if len(ways) > 1:
        raise pytest.UsageError(f"{' and '.join(ways)} do not go together")
    absent = {"--pooler": None if pooler.PROGRAM else pooler.ABSENT, "--citus": nodes.missing()}.get(ways[0])
    if absent:
        raise pytest.UsageError(absent)
    left_out = {"--pooler": pooler.NOT_THROUGH, "--citus": distributed.NOT_DISTRIBUTED}.get(ways[0], {})
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
    """The URL of the server that this process's tests have their databases on, running while the block lasts."""
    if config.getoption("--citus"):
        with nodes.running(workers=2) as cluster:
            url = checked(cluster.url("postgres"))
            _servers[url] = distributed.Distributed(cluster, PREFIX)
            yield url
    elif named := config.getoption("--database-url"):
        url = checked(named)
        _servers[url] = Copies(url, "WAL_LOG")  # a checkpoint, which FILE_COPY makes, takes long where all is synced
        yield url
    else:
        with data_folder() as folder:
            running = embedded.start(folder, {**embedded.OPTIONS, **IN_HASTE})
            _servers[running.url] = Copies(running.url, "FILE_COPY")
            with pooler.before_all(running.url) if config.getoption("--pooler") else nullcontext():
                yield running.url
            running.stop()


@asynccontextmanager
async def template(postgres: str) -> AsyncIterator[str]:
    """The name of a migrated database that tests copy."""
    databases = _servers[postgres]
    try:
        yield await databases.template()
    finally:
        await databases.close()


def migrated(postgres: str, template: str) -> AbstractAsyncContextManager[str]:
    """The URL of a migrated, empty database that goes when the block ends."""
    return _servers[postgres].migrated(template)


@asynccontextmanager
async def unmigrated(postgres: str) -> AsyncIterator[str]:
    """The URL of a database without tables that goes when the block ends."""
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
    """Copies of a database that was migrated once."""

    def __init__(self, url: str, strategy: str) -> None:
        self._url, self._strategy = url, strategy
        self._template = _unused_name()
        # Kept connections: a new one for each database costs as much as half a copy.
        self._administrators: asyncpg.Pool | None = None

    async def template(self) -> str:
        """Make a migrated database to copy, and return its name."""
        await self._run(f"CREATE DATABASE {self._template}")
        await migrate.upgrade(_at(self._url, self._template))
        return self._template

    @asynccontextmanager
    async def migrated(self, template: str) -> AsyncIterator[str]:
        """The URL of a copy that goes when the block ends."""
        name = _unused_name()
        if template != self._template:  # a pooler may keep connections, and a database that has any cannot be copied
            ended = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE datname"
            await self._run(f"{ended} = '{template}'")
        await self._run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY {self._strategy}")
        try:
            yield _at(self._url, name)
        finally:
            await self._run(f"DROP DATABASE {name} WITH (FORCE)")

    async def close(self) -> None:
        """Leave nothing behind."""
        await self._run(f"DROP DATABASE IF EXISTS {self._template} WITH (FORCE)")
        if self._administrators is not None:
            await self._administrators.close()

    async def _run(self, statement: str) -> None:
        if self._administrators is None:
            dsn = for_asyncpg(self._url)
            self._administrators = await asyncpg.create_pool(dsn, min_size=0, max_inactive_connection_lifetime=0)
        await self._administrators.execute(statement)
