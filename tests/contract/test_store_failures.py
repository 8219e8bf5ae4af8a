"""When connections to the database are lost, requests say so, lose nothing that was acknowledged, and recover."""

import asyncio

import asyncpg
import httpx
import pytest

from app.core.errors import StoreUnavailable
from app.settings import Settings
from app.store.dsn import for_asyncpg
from app.store.engine import TRIES, Database

TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> $1"


async def test_lost_connections_are_503_or_nothing_at_all(client: httpx.AsyncClient, database_url: str) -> None:
    await client.put("/v1/sessions/s", json={})
    operator = await asyncpg.connect(for_asyncpg(database_url))
    acknowledged: set[str] = set()
    seen: set[int] = set()

    async def write(writer: int) -> None:
        for number in range(15):
            name = f"{writer}-{number}"
            event = {"type": "user.message", "id": name, "content": name}
            answer = await client.post("/v1/sessions/s/events", json={"events": [event]})
            seen.add(answer.status_code)
            if answer.status_code == 201:
                acknowledged.add(name)
            else:
                assert answer.json()["type"] == "/problems/store-unavailable", answer.text
                assert answer.headers["retry-after"] == "1"

    writers = [asyncio.create_task(write(n)) for n in range(8)]
    while not all(writer.done() for writer in writers):
        await operator.fetch(TERMINATE, operator.get_server_pid())
        await asyncio.wait(writers, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*writers)
    assert seen <= {201, 503}

    # Every connection the pool still held is found dead at most once.
    ready = [(await client.get("/readyz")).status_code for _ in range(Settings().pool_size + 1)]
    assert set(ready) <= {200, 503}
    assert ready[-1] == 200
    answer = await client.get("/v1/sessions/s/events", params={"limit": 1000})
    assert answer.status_code == 200, answer.text
    page = answer.json()["items"]
    assert acknowledged <= {event["id"] for event in page}
    assert [event["seq"] for event in page] == list(range(1, len(page) + 1))
    await operator.close()


@pytest.fixture
async def deadlock(database: Database) -> str:
    """A statement that loses so many deadlocks before it works; numbers that were taken are not given back."""
    await database.execute("CREATE SEQUENCE tries")
    await database.execute(
        "CREATE FUNCTION gives_way(times BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS $$ BEGIN "
        "IF nextval('tries') <= times THEN RAISE 'deadlock detected' USING ERRCODE = 'deadlock_detected'; END IF; "
        "RETURN currval('tries'); END $$"
    )
    return "SELECT gives_way($1) AS tries"


async def test_a_statement_that_must_give_way_is_tried_again_and_a_transaction_is_not(
    database: Database, deadlock: str
) -> None:
    row = await database.fetchrow(deadlock, TRIES - 1)
    assert row is not None
    assert row["tries"] == TRIES
    with pytest.raises(StoreUnavailable):
        await database.fetch(deadlock, 2 * TRIES)
    with pytest.raises(StoreUnavailable):
        async with database.transaction() as tx:
            await tx.fetch(deadlock, 2 * TRIES + 1)
    assert await database.execute(deadlock, 0) == "SELECT 1"
