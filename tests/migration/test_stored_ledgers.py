"""The ledger of calls that an earlier release stored."""

import json

import asyncpg
import pytest

from app.core.record import from_json
from app.store import migrate
from app.store.engine import Database
from app.store.ids import SessionRef
from app.wings.ledger.store import calls

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
    refs = [(SessionRef(row["session_id"], row["tenant_id"]), row["view"]) for row in views]
    found = [one for ref, view in refs for one in await calls(database, ref, view, limit=100)]
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
