"""A search reads only its session's terms from the index, and an append does not write to it."""

from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest

from app.store.engine import Connection, Database, acting_for
from app.store.event_log import SessionLog
from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT
from app.wings.recall import store as search
from app.wings.recall.search import keys
from tests.conftest import filled_database
from tests.support.databases import migrated

EVENTS = 6_000
OTHERS = 20


async def fill(client: httpx.AsyncClient, database: Database) -> None:
    """Create a long session and many short ones with the same texts, all of them indexed."""
    for name, count in (("long", EVENTS), *((f"s{n}", 100) for n in range(OTHERS))):
        for at in range(0, count, 1_000):
            events = [
                {"type": "user.message", "content": f"row {n} of the file says rare{n // 50}"}
                for n in range(at, min(at + 1_000, count))
            ]
            answer = await client.post(f"/v1/sessions/{name}/events", json={"events": events})
            assert answer.status_code == 201, answer.text
        while True:
            answer = await client.post(f"/v1/sessions/{name}/recall", json={"query": "rare1"}, timeout=60)
            assert answer.status_code == 200
            if "unsearched" not in answer.json():
                break
    await database.execute("ANALYZE search")


@pytest.fixture(scope="module")
async def indexed(postgres: str, template: str) -> AsyncIterator[str]:
    """Return the name of a database with these sessions."""
    async with filled_database(postgres, template, fill) as name:
        yield name


@pytest.fixture
async def database_url(postgres: str, indexed: str) -> AsyncIterator[str]:
    """Return a copy of the database for each test."""
    async with migrated(postgres, indexed) as url:
        yield url


@pytest.fixture
def searched(application: Database) -> Database:
    """Return the database with the sessions, with the application's role."""
    return application


async def read_for(database: Database, session: str, *words: str) -> tuple[int, int]:
    """Return a search's table scans and rows read by index, from counters, because a function's plan is hidden."""
    own = session_key(DEFAULT_TENANT, session)
    async with database.transaction() as tx:
        before = await counted(tx)  # of earlier transactions of the connection, which Postgres has not collected yet
        await tx.fetch(
            search._HITS,
            session_id=own,
            terms=keys(own.bytes, words),
            to_seq=EVENTS,
            limit=100,
            asks=1,
            speaks=[2],
        )
        after = await counted(tx)
    return after[0] - before[0], after[1] - before[1]


async def counted(tx: Connection) -> tuple[int, int]:
    """Return the scans of the table and the rows read by index so far."""
    row = await tx.fetchrow("SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'search'")
    assert row is not None
    return row["seq_scan"], row["idx_tup_fetch"]


async def test_a_search_reads_only_its_sessions_matches_and_scores_a_bounded_number(searched: Database) -> None:
    with acting_for(DEFAULT_TENANT):
        assert await read_for(searched, "long", "rare1") == (0, 50)
        scans, rows = await read_for(searched, "s0", "rare1")
        assert scans == 0
        assert rows <= 100

        # If many entries match, the ones with the rarest terms are scored first.
        found = await search.find(searched, SessionLog(session_key(DEFAULT_TENANT, "long")), ("row", "rare7"))
    assert (found.matches, found.corpus.entries, list(found.corpus.holding)) == (EVENTS, EVENTS, [EVENTS, 50])
    assert len(found.hits) == search.CANDIDATES_MAX
    assert {hit.seq for hit in found.hits if hit.counts[1]} == set(range(351, 401))


async def test_a_search_finds_nothing_for_another_or_no_tenant(searched: Database) -> None:
    log = SessionLog(session_key(DEFAULT_TENANT, "s0"))
    assert (await search.find(searched, log, ("row",))).matches == 0
    with acting_for(uuid4()):
        assert (await search.find(searched, log, ("row",))).matches == 0
    with acting_for(DEFAULT_TENANT):
        assert (await search.find(searched, log, ("row",))).matches == 100
