"""A search enters its index at this session's own terms, whatever else there is, and an append knows nothing of it."""

import json
from typing import Any

import httpx
import pytest

from app.core.fork import whole
from app.core.search import keys
from app.services.tenants import DEFAULT_TENANT
from app.store import search
from app.store.engine import Database
from app.store.sessions import session_key
from tests.integration.test_query_plans import nodes

EVENTS = 6_000
OTHERS = 20


@pytest.fixture
async def searched(client: httpx.AsyncClient, database: Database) -> Database:
    """A long session and many short ones that say the same, all of them indexed."""
    for name, count in (("long", EVENTS), *((f"s{n}", 100) for n in range(OTHERS))):
        for at in range(0, count, 1_000):
            events = [
                {"type": "user.message", "content": f"row {n} of the file says rare{n // 50}"}
                for n in range(at, min(at + 1_000, count))
            ]
            answer = await client.post(f"/v1/sessions/{name}/events", json={"events": events})
            assert answer.status_code == 201, answer.text
        answer = await client.post(f"/v1/sessions/{name}/recall", json={"query": "rare1"}, timeout=60)
        assert answer.status_code == 200 and answer.json()["items"]
    await database.execute("ANALYZE search")
    return database


async def plan_of(database: Database, session: str, *words: str) -> list[dict[str, Any]]:
    own = session_key(DEFAULT_TENANT, session)
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        row = await tx.fetchrow(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + search._HITS, own, keys(own.bytes, words), EVENTS, 100, 1, [2]
        )
    assert row is not None
    return nodes(json.loads(row[0])[0]["Plan"])


async def test_a_search_reads_only_what_matches_in_its_session_and_scores_so_many(searched: Database) -> None:
    for session, most in (("long", 50), ("s0", 100)):
        plan = await plan_of(searched, session, "rare1")
        on_search = [node for node in plan if node.get("Relation Name") == "search" or "Index Name" in node]
        assert on_search
        assert {node["Node Type"] for node in on_search} <= {"Bitmap Heap Scan", "Bitmap Index Scan", "Index Scan"}
        for node in on_search:
            assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= most, node
    [entered] = [node for node in await plan_of(searched, "long", "rare1") if "Index Name" in node]
    assert (entered["Index Name"], entered["Actual Rows"]) == ("search_terms_idx", 50)

    # What many hold is scored by the rarest first.
    found = await search.find(searched, whole((), session_key(DEFAULT_TENANT, "long"), EVENTS), ("row", "rare7"))
    assert (found.matches, found.corpus.entries, list(found.corpus.holding)) == (EVENTS, EVENTS, [EVENTS, 50])
    assert len(found.hits) == search.CANDIDATES_MAX
    assert {hit.seq for hit in found.hits if hit.counts[1]} == set(range(351, 401))
