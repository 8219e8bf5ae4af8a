"""Databases for migrations: empty ones, and one that an earlier release left."""

import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from tests.migration.test_migrations import on, upgrade
from tests.support.databases import unmigrated

DUMP = Path(__file__).parent.parent / "golden" / "database_0015.sql.gz"
REVISION = "0015"


@pytest.fixture
async def empty(postgres: str) -> AsyncIterator[Callable[[], Any]]:
    """Return a function that creates empty databases."""
    async with AsyncExitStack() as made:

        async def make() -> str:
            return await made.enter_async_context(unmigrated(postgres))

        yield make


@pytest.fixture
async def url(empty: Callable[[], Any]) -> str:
    """Return the URL of an empty database."""
    return str(await empty())


@pytest.fixture
async def earlier_database(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Return a database as the earlier release left it."""
    await on(url, partial(upgrade, to=REVISION))
    connection = await asyncpg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        await connection.execute("SET session_replication_role = replica")  # neither triggers nor foreign keys
        await connection.execute("TRUNCATE tenants, policies CASCADE")
        await connection.execute(gzip.decompress(DUMP.read_bytes()).decode())
        yield connection
    finally:
        await connection.close()
