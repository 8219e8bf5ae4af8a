"""Calls that an earlier release stored render again to the same bytes once their database has been migrated."""

import gzip
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url

from app.settings import Settings
from app.store import migrate
from tests.conftest import serving
from tests.migration.test_migrations import downgrade, on, upgrade
from tests.support.records import manifests

DUMP = Path(__file__).parent.parent / "golden" / "database_0015.sql.gz"
REVISION = "0015"
CALLS = """
    SELECT s.external_id, m.call_id::text, encode(m.sha256, 'hex')
    FROM model_calls m JOIN sessions s USING (session_id) ORDER BY m.call_id
"""


@pytest.fixture
async def earlier(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A database as the earlier release left it."""
    await on(url, partial(upgrade, to=REVISION))
    connection = await asyncpg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        await connection.execute("SET session_replication_role = replica")  # neither triggers nor foreign keys
        await connection.execute("TRUNCATE tenants, policies CASCADE")
        await connection.execute(gzip.decompress(DUMP.read_bytes()).decode())
        yield connection
    finally:
        await connection.close()


async def test_every_stored_call_renders_again(url: str, earlier: asyncpg.Connection) -> None:
    await migrate.upgrade(url)
    calls = await earlier.fetch(CALLS)
    assert len(calls) > 10
    async with serving(Settings(), url) as base, httpx.AsyncClient(base_url=base, timeout=30) as http:
        for session, call_id, sha256 in calls:
            again = (await http.get(f"/v1/sessions/{session}/calls/{call_id}/context")).json()
            assert (again["reproduced"], again["sha256"]) == (True, sha256), (session, call_id)


async def test_what_statements_read_of_a_manifest_is_filled_from_it(url: str, earlier: asyncpg.Connection) -> None:
    """Also after the way back, under which calls were made that knew nothing of it; manifests stay as they are."""
    stored = "SELECT call_id, manifest::text FROM model_calls ORDER BY call_id"
    before = await earlier.fetch(stored)
    for _ in range(2):
        await migrate.upgrade(url)
        found = await manifests(earlier)
        assert len(found) > 10
        assert {one.now is None for one in found} == {False}
        assert any(point.tokens for one in found for point in one.breakpoints)
        await on(url, partial(downgrade, to=REVISION))
    assert await earlier.fetch(stored) == before
    oldest = '{"by_source": {"tools": 1, "system": 2, "ephemeral": 3}, "window": 9, "breakpoint_kinds": ["tail"]}'
    await earlier.execute("UPDATE model_calls SET manifest = $1, breakpoints = '{7}'", oldest)
    await migrate.upgrade(url)
    [made_with] = {one.window: one for one in await manifests(earlier)}.values()
    assert (made_with.window, made_with.now, made_with.outside) == (9, None, 0)
