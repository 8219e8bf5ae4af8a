"""Calls that an earlier release stored render again to the same bytes once their database has been migrated."""

import gzip
from pathlib import Path

import asyncpg
import httpx
from sqlalchemy.engine import make_url

from app.settings import Settings
from app.store import migrate
from tests.conftest import serving
from tests.migration.test_migrations import on, upgrade

DUMP = Path(__file__).parent.parent / "golden" / "database_0015.sql.gz"
REVISION = "0015"
CALLS = """
    SELECT s.external_id, m.call_id::text, encode(m.sha256, 'hex')
    FROM model_calls m JOIN sessions s USING (session_id) ORDER BY m.call_id
"""


async def test_every_stored_call_renders_again(url: str) -> None:
    await on(url, lambda connection: upgrade(connection, REVISION))
    connection = await asyncpg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        await connection.execute("SET session_replication_role = replica")  # neither triggers nor foreign keys
        await connection.execute("TRUNCATE tenants, policies CASCADE")
        await connection.execute(gzip.decompress(DUMP.read_bytes()).decode())
        await migrate.upgrade(url)
        calls = await connection.fetch(CALLS)
    finally:
        await connection.close()
    assert len(calls) > 10
    async with serving(Settings(), url) as base, httpx.AsyncClient(base_url=base, timeout=30) as http:
        for session, call_id, sha256 in calls:
            again = (await http.get(f"/v1/sessions/{session}/calls/{call_id}/context")).json()
            assert (again["reproduced"], again["sha256"]) == (True, sha256), (session, call_id)
