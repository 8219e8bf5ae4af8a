"""Calls that an earlier release stored render again to the same bytes once their database has been migrated."""

import gzip
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url

from app.core.record.manifest import from_json
from app.runtime.settings import Settings
from app.store import migrate
from app.store.engine import Database
from app.store.ledger import calls
from tests.conftest import serving
from tests.migration.test_migrations import on, upgrade

DUMP = Path(__file__).parent.parent / "golden" / "database_0015.sql.gz"
REVISION = "0015"
CALLS = """
    SELECT s.external_id, m.call_id::text, encode(m.sha256, 'hex')
    FROM model_calls m JOIN sessions s USING (session_id) ORDER BY m.call_id
"""


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


async def test_every_stored_call_renders_again(url: str, earlier_database: asyncpg.Connection) -> None:
    await migrate.upgrade(url)
    calls = await earlier_database.fetch(CALLS)
    assert len(calls) > 10
    async with serving(Settings(), url) as base, httpx.AsyncClient(base_url=base, timeout=30) as http:
        for session, call_id, sha256 in calls:
            again = (await http.get(f"/v1/sessions/{session}/calls/{call_id}/context")).json()
            assert (again["reproduced"], again["sha256"]) == (True, sha256), (session, call_id)


OLDEST = '{"by_source": {"tools": 1, "system": 2, "ephemeral": 3}, "window": 9, "breakpoint_kinds": ["tail"]}'


@pytest.mark.parametrize("oldest", [False, True])
async def test_the_ledger_of_stored_calls_reads_their_manifests(
    url: str, earlier_database: asyncpg.Connection, oldest: bool
) -> None:
    """The columns that were later added for manifest fields are empty in earlier records."""
    if oldest:
        await earlier_database.execute("UPDATE model_calls SET manifest = $1, breakpoints = '{7}'", OLDEST)
    await migrate.upgrade(url)
    stored = {
        row["call_id"]: (row["created_at"], from_json(json.loads(row["manifest"])))
        for row in await earlier_database.fetch(
            "SELECT call_id, created_at, manifest::text AS manifest FROM model_calls"
        )
    }
    views = await earlier_database.fetch("SELECT DISTINCT session_id, tenant_id, view FROM model_calls")
    database = Database(url, pool_size=1, role=None)
    found = [one for row in views for one in await calls(database, *row, limit=100)]
    await database.close()
    assert len(found) == len(stored) > 10
    for one in found:
        created_at, made_with = stored[one.call_id]
        assert (one.window, one.outside) == (made_with.window, made_with.outside)
        assert one.at == (made_with.now or created_at).timestamp()
        assert (one.tools, one.system, one.ephemeral) == tuple(
            made_with.by_source[source] for source in ("tools", "system", "ephemeral")
        )
        assert [mark[1:] for mark in one.marks] == [(point.tokens, point.blocks) for point in made_with.breakpoints]
