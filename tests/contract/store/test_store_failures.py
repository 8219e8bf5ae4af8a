"""Lost connections to the database: requests fail with 503, nothing acknowledged is lost, and the server recovers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import httpx
import pytest

from app.core.errors import StoreUnavailable
from app.runtime.settings import Settings
from app.store.dsn import for_asyncpg
from app.store.engine import TRIES, Database
from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT
from tests.support.waiting import count_waiting

TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> $1"


Operator = asyncpg.Connection


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[Operator]:
    """A connection to the test's database, closed even after a failed test because uvloop would wait for it."""
    async with connected(database_url) as connection:
        yield connection


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Operator]:
    connection = await asyncpg.connect(for_asyncpg(url))
    try:
        yield connection
    finally:
        await connection.close()


async def test_lost_connections_cause_503_or_no_error(client: httpx.AsyncClient, operator: Operator) -> None:
    await client.put("/v1/sessions/s", json={})
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

    # Each dead connection of the pool fails at most one request.
    ready = [(await client.get("/readyz")).status_code for _ in range(Settings().pool_size + 1)]
    assert set(ready) <= {200, 503}
    assert ready[-1] == 200
    answer = await client.get("/v1/sessions/s/events", params={"limit": 1000})
    assert answer.status_code == 200, answer.text
    page = answer.json()["items"]
    assert acknowledged <= {event["id"] for event in page}
    assert [event["seq"] for event in page] == list(range(1, len(page) + 1))


@pytest.fixture
async def deadlock(database: Database) -> str:
    """A statement that fails with `times` deadlocks before it works; sequence values survive the rollbacks."""
    await database.execute("CREATE SEQUENCE tries")
    await database.execute(
        "CREATE FUNCTION gives_way(times BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS $$ BEGIN "
        "IF nextval('tries') <= times THEN RAISE 'deadlock detected' USING ERRCODE = 'deadlock_detected'; END IF; "
        "RETURN currval('tries'); END $$"
    )
    return "SELECT gives_way(:times) AS tries"


async def test_a_deadlocked_statement_is_retried_and_a_transaction_is_not(database: Database, deadlock: str) -> None:
    row = await database.fetchrow(deadlock, times=TRIES - 1)
    assert row is not None
    assert row["tries"] == TRIES
    with pytest.raises(StoreUnavailable):
        await database.fetch(deadlock, times=2 * TRIES)
    with pytest.raises(StoreUnavailable):
        async with database.transaction() as tx:
            await tx.fetch(deadlock, times=2 * TRIES + 1)
    assert await database.execute(deadlock, times=0) == "SELECT 1"


async def test_a_locked_session_does_not_block_others(client: httpx.AsyncClient, operator: Operator) -> None:
    event = {"events": [{"type": "user.message", "content": "hello"}]}
    await client.post("/v1/sessions/locked/events", json=event)
    async with operator.transaction():
        await operator.execute(
            "SELECT FROM sessions WHERE session_id = $1 FOR UPDATE", session_key(DEFAULT_TENANT, "locked")
        )
        held_up = [
            asyncio.create_task(client.post("/v1/sessions/locked/events", json=event))
            for _ in range(2 * Settings().pool_size)
        ]
        while not await count_waiting(operator):
            pass
        others = await asyncio.gather(
            *(client.post(f"/v1/sessions/other-{number}/events", json=event) for number in range(8))
        )
        assert {answer.status_code for answer in others} == {201}
        assert not any(task.done() for task in held_up)
    assert {answer.status_code for answer in await asyncio.gather(*held_up)} == {201}


@pytest.mark.parametrize("setting", ["default_transaction_read_only = on", "statement_timeout = 1", "lock_timeout = 1"])
async def test_temporary_restrictions_of_the_database_are_503(
    client: httpx.AsyncClient, operator: Operator, setting: str
) -> None:
    event = {"events": [{"type": "user.message", "content": "hello"}]}
    name = await operator.fetchval("SELECT current_database()")
    await operator.execute(f"ALTER DATABASE {name} SET {setting}")
    await operator.fetch(TERMINATE, operator.get_server_pid())
    found = set()
    for _ in range(2 * Settings().pool_size):
        found.add((await client.post("/v1/sessions/s/events", json=event)).status_code)
    assert found <= {201, 503}
    await operator.execute(f"ALTER DATABASE {name} RESET ALL")
    await operator.fetch(TERMINATE, operator.get_server_pid())
    for _ in range(Settings().pool_size + 1):
        await client.get("/readyz")
    assert (await client.post("/v1/sessions/s/events", json=event)).status_code == 201


async def test_a_database_that_takes_no_connections_is_503(
    client: httpx.AsyncClient, database_url: str, postgres: str
) -> None:
    name = for_asyncpg(database_url).rpartition("/")[2].partition("?")[0]
    async with connected(postgres) as operator:
        await operator.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        await operator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        answers = [
            await client.get("/v1/sessions") for _ in range(Settings().pool_size + 2)
        ]  # the pool's connections, then new ones
        assert {(one.status_code, one.json()["type"]) for one in answers} == {(503, "/problems/store-unavailable")}
        await operator.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
    assert (await client.get("/v1/sessions")).status_code == 200


async def test_a_database_with_a_full_disk_is_not_ready(database: Database) -> None:
    await database.ready()
    with pytest.raises(StoreUnavailable):
        await database.execute("DO $$ BEGIN RAISE 'no space left on device' USING ERRCODE = 'disk_full'; END $$")
    with pytest.raises(StoreUnavailable, match="no room"):
        await database.ready()
