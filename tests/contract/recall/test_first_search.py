"""The search index: empty until the first search, which indexes a bounded part; a worker indexes the rest."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet

from app.runtime.settings import Settings
from app.store.engine import Database
from app.store.ids import session_key, session_ref
from app.tenants import DEFAULT_TENANT
from app.wings.recall import service
from app.wings.recall.service import Allowance, Indexing
from tests.conftest import serving
from tests.support.queue import worker_queue
from tests.support.tenants import working
from tests.support.walk import POLICY

S = "/v1/sessions/s"
EVENTS = 40
BOUND = 10


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search index at most BOUND events, in two batches."""
    monkeypatch.setattr(service, "SEARCH_EVENTS", BOUND)
    monkeypatch.setattr(service, "BATCH_EVENTS", BOUND // 2)


async def post(client: httpx.AsyncClient, first: int, last: int, at: str = S, more: str = "") -> None:
    """Append the events `first` to `last`, each with a word of its own."""
    events = [{"type": "user.message", "content": f"berth{n} of the harbour{more}"} for n in range(first, last + 1)]
    answer = await client.post(f"{at}/events", json={"events": events})
    assert answer.status_code == 201, answer.text


async def recall(client: httpx.AsyncClient, query: str, at: str = S) -> tuple[list[int], int]:
    """Return the seqs that a search finds, and the number of events that it did not search."""
    answer = await client.post(f"{at}/recall", json={"query": query, "limit": 100, "max_tokens": 20_000})
    assert answer.status_code == 200, answer.text
    assert answer.json().get("unsearched") != 0  # absent instead
    return sorted(item["seq"] for item in answer.json()["items"]), answer.json().get("unsearched", 0)


async def index_of(database: Database, name: str = "s") -> list[tuple[Any, ...]]:
    """Return a session's index: its head, then its entries."""
    own = session_key(DEFAULT_TENANT, name)
    head = await database.fetch(
        "SELECT start, head, entries, length FROM search_heads WHERE session_id = :own AND version > 0", own=own
    )
    rows = await database.fetch("SELECT * FROM search WHERE session_id = :own ORDER BY seq", own=own)
    return [tuple(row.values()) for row in (*head, *rows)]


@asynccontextmanager
async def worked_off(database_url: str) -> AsyncIterator[None]:
    """Run a worker after the block, until its queue is empty."""
    yield
    async with worker_queue(database_url) as idle, working(database_url):
        await idle()


async def test_a_session_that_is_never_searched_has_no_index(
    client: httpx.AsyncClient, database_url: str, database: Database
) -> None:
    assert (await client.put(S, json={"policy": POLICY})).status_code == 201
    async with worker_queue(database_url) as idle, working(database_url):

        async def compact(first: int, last: int) -> None:
            await post(client, first, last, more=" and its boats" * 60)
            await client.post(f"{S}/compactions", json={"wait_ms": 30_000})
            await idle()

        await compact(1, EVENTS)
        assert (await client.get(f"{S}/summaries")).json()["items"]
        assert await index_of(database) == []
        assert await database.fetch("SELECT FROM search_heads") == []
        found, unsearched = await recall(client, "berth7")
        assert 7 in found and not unsearched
        await compact(EVENTS + 1, 2 * EVENTS)
        assert (await index_of(database))[0][:3] == (1, 2 * EVENTS, 2 * EVENTS)


async def test_a_redaction_of_an_event_makes_no_index(
    client: httpx.AsyncClient, database_url: str, database: Database
) -> None:
    async with worker_queue(database_url) as idle, working(database_url):
        await post(client, 1, EVENTS)
        assert (await client.delete(f"{S}/events/7")).status_code == 204
        await client.post(f"{S}/compactions", json={"wait_ms": 30_000})
        await idle()
        assert await index_of(database) == []
    assert await recall(client, "harbour") == ([*range(1, 7), *range(8, EVENTS + 1)], 0)


@pytest.mark.usefixtures("bounded")
async def test_the_first_search_of_a_long_session_searches_its_end_and_a_worker_indexes_the_rest(
    client: httpx.AsyncClient, database_url: str, database: Database
) -> None:
    await post(client, 1, EVENTS)
    async with worked_off(database_url):
        assert await recall(client, "harbour") == ([*range(31, 41)], 30)
        assert await recall(client, "berth40 berth7") == ([40], 20)
        await post(client, EVENTS + 1, EVENTS + 5)
        assert await recall(client, "harbour") == ([*range(16, 46)], 15)
        jobs = await database.fetch("SELECT dedupe_key FROM pgqueuer WHERE entrypoint = 'index'")
        assert [row["dedupe_key"] for row in jobs] == [f"index:{session_key(DEFAULT_TENANT, 's')}"]
    assert (await index_of(database))[0][:3] == (1, 45, 45)
    assert await recall(client, "harbour") == ([*range(1, 46)], 0)
    assert 7 in (await recall(client, "berth40 berth7"))[0]


@pytest.mark.usefixtures("bounded")
async def test_the_bound_counts_tokens_too(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await post(client, 1, EVENTS)
    monkeypatch.setattr(service, "SEARCH_TOKENS", 1)
    assert await recall(client, "harbour") == ([40], 39)


@pytest.mark.usefixtures("bounded")
async def test_a_fork_and_its_ancestor_share_the_bound(client: httpx.AsyncClient, database_url: str) -> None:
    fork = "/v1/sessions/f"
    await post(client, 1, EVENTS)
    assert (await client.post(f"{S}/fork", json={"at": 20, "id": "f"})).status_code == 201
    await post(client, 21, 26, at=fork)
    async with worked_off(database_url):
        assert await recall(client, "harbour", at=fork) == ([*range(17, 27)], 16)
        assert await recall(client, "harbour") == ([*range(17, 31)], 26)  # continues after the shared part
    assert await recall(client, "harbour", at=fork) == ([*range(1, 27)], 0)
    assert await recall(client, "harbour") == ([*range(1, 41)], 0)


@pytest.mark.usefixtures("bounded")
async def test_encrypted_contents_are_indexed_by_a_worker(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_ENCRYPTION_KEY", Fernet.generate_key().decode())
    async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        await post(client, 1, EVENTS)
        async with worked_off(database_url):
            assert await recall(client, "harbour") == ([*range(31, 41)], 30)
        assert await recall(client, "harbour") == ([*range(1, 41)], 0)


@pytest.mark.usefixtures("bounded")
async def test_a_job_ends_with_its_session(client: httpx.AsyncClient, database_url: str, database: Database) -> None:
    await post(client, 1, EVENTS)
    async with worked_off(database_url):
        await recall(client, "harbour")
        assert (await client.delete(S)).status_code == 204
        assert await database.fetch("SELECT FROM pgqueuer WHERE entrypoint = 'index'") == []
        await post(client, 1, 5)  # under the same name, and shorter than the job's last event
        await database.execute(
            "INSERT INTO pgqueuer (priority, entrypoint, payload, status) VALUES (0, 'index', :payload, 'queued')",
            payload=f"{session_key(DEFAULT_TENANT, 's')} {DEFAULT_TENANT} 1 40".encode(),
        )
    assert await recall(client, "harbour") == ([1, 2, 3, 4, 5], 0)


@pytest.mark.parametrize("seed", range(5))
async def test_parts_in_any_order_make_the_index_of_the_whole(
    client: httpx.AsyncClient, database: Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    indexing, own = Indexing(database), session_ref(DEFAULT_TENANT, "s")
    monkeypatch.setattr(service, "BATCH_EVENTS", 4)
    head = 0
    for _ in range(12):
        added = chance.randint(1, 8)
        await post(client, head + 1, head + added)
        head += added
        parts = [
            indexing.index(own, 1, last, Allowance(chance.randint(1, 9), chance.choice([1, 60, 10_000])))
            for last in (head, chance.randint(1, head))
        ]
        left, _ = await asyncio.gather(*parts)
        [at, *rows] = await index_of(database)
        assert left is not None and [row[1] for row in rows] == [*range(at[0], at[1] + 1)]
    assert await indexing.index(own, 1, head) == 0
    found = await index_of(database)
    await database.execute("DELETE FROM search_heads")
    await database.execute("DELETE FROM search")
    assert await indexing.index(own, 1, head) == 0
    assert found == await index_of(database)
