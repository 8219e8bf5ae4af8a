"""Calls that an earlier release stored render again to the same bytes once their database has been migrated."""

import asyncpg
import httpx
import pytest

from app.runtime.settings import Settings
from app.store import migrate
from tests.conftest import serving

CALLS = """
    SELECT s.external_id, m.call_id::text, encode(m.sha256, 'hex')
    FROM model_calls m JOIN sessions s USING (session_id) ORDER BY m.call_id
"""


@pytest.mark.wing("audit")
async def test_every_stored_call_renders_again(url: str, earlier_database: asyncpg.Connection) -> None:
    await migrate.upgrade(url)
    calls = await earlier_database.fetch(CALLS)
    assert len(calls) > 10
    async with serving(Settings(), url) as base, httpx.AsyncClient(base_url=base, timeout=30) as http:
        for session, call_id, sha256 in calls:
            again = (await http.get(f"/v1/sessions/{session}/calls/{call_id}/context")).json()
            assert (again["reproduced"], again["sha256"]) == (True, sha256), (session, call_id)
