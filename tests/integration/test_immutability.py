"""The database refuses changes of recorded data; only erasing a session removes it."""

from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest

from app.store.deletion import erase_session
from app.store.engine import Database
from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT
from tests.conftest import filled_database
from tests.support.databases import migrated

IMMUTABLE = ("events", "epochs", "policies", "layers")
EVENTS = {"events": [{"type": "user.message", "content": "hello"}, {"type": "assistant.message", "content": "hi"}]}

SUMMARY = """
    INSERT INTO summaries (session_id, tenant_id, id, cover_id, depth, from_seq, to_seq, text, digest, tokens,
        source_tokens, events, turns, starts_at, ends_at, summarizer, usage, degraded, status)
    VALUES (:key, :tenant, gen_random_uuid(), :key, 0, 1, 2, 'said', '{}', 1, 2, 2, '{1}', now(), now(), 'extractive',
        '{}', false, 'live')
"""


async def record(client: httpx.AsyncClient, database: Database) -> None:
    """Create sessions `a` and `b`, each with every kind of row that a session can have with the wings there are."""
    hook = {"url": "https://example.com/", "events": ["compaction.scheduled"]}
    answer = await client.put("/v1/webhooks/h", json=hook)
    assert answer.status_code in (201, 404), answer.text
    for name in ("a", "b"):
        answer = await client.put(f"/v1/sessions/{name}", json={"policy": {"reserve_tokens": 1000}})
        assert answer.status_code == 201, answer.text
        headers = {"Idempotency-Key": "k"}
        answer = await client.post(f"/v1/sessions/{name}/events", json=EVENTS, headers=headers)
        assert answer.status_code == 201, answer.text
        whole = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
        answer = await client.post(f"/v1/sessions/{name}/context", json={"messages": whole})
        assert answer.status_code == 200, answer.text
        assert answer.json()["appended"] == []
        path = f"/v1/sessions/{name}/calls/{answer.json()['call_id']}/warmings"
        answer = await client.post(path, json={"usage": {"cache_read_tokens": 9}})
        assert answer.status_code in (201, 404), answer.text
        answer = await client.post(f"/v1/sessions/{name}/compactions", json={})
        assert answer.status_code == 202, answer.text
        answer = await client.patch(f"/v1/sessions/{name}/visibility", json={"hide": [2]})
        assert answer.json()["hidden"] == [2], answer.text
        answer = await client.delete(f"/v1/sessions/{name}/events/2")
        assert answer.status_code == 204, answer.text
        answer = await client.post(f"/v1/sessions/{name}/recall", json={"query": "hello"})
        assert answer.status_code in (200, 404), answer.text
        answer = await client.put(f"/v1/sessions/{name}/layers/sources", json={"content": "read"})
        assert answer.status_code == 200, answer.text
        await database.execute(SUMMARY, key=session_key(DEFAULT_TENANT, name), tenant=DEFAULT_TENANT)


@pytest.fixture(scope="module")
async def sessions(postgres: str, template: str) -> AsyncIterator[str]:
    """Return the name of a database with these sessions."""
    async with filled_database(postgres, template, record) as name:
        yield name


@pytest.fixture
async def database_url(postgres: str, sessions: str) -> AsyncIterator[str]:
    """Return a copy of the database for each test."""
    async with migrated(postgres, sessions) as url:
        yield url


@pytest.fixture
def recorded(database: Database) -> Database:
    """Return the database with the sessions."""
    return database


async def rows(database: Database, table: str) -> list[str]:
    return [row["row"] for row in await database.fetch(f"SELECT t::text AS row FROM {table} t ORDER BY 1")]


async def of_session(database: Database, name: str) -> dict[str, int]:
    """Return the number of the session's rows by table."""
    tables = await database.fetch(
        "SELECT table_name FROM information_schema.columns WHERE table_schema = 'public' "
        "AND column_name = 'session_id' AND table_name NOT IN ('erased', 'erased_names')"  # kept after an erasure
    )
    counts = {}
    for (table,) in tables:
        row = await database.fetchrow(
            f"SELECT count(*) AS n FROM {table} WHERE session_id = :key", key=session_key(DEFAULT_TENANT, name)
        )
        assert row is not None
        counts[table] = int(row["n"])
    return counts


@pytest.mark.parametrize("table", IMMUTABLE)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {table} SET created_at = created_at",
        "UPDATE {table} SET tenant_id = gen_random_uuid()",
        "DELETE FROM {table}",
        "TRUNCATE {table}",
        "TRUNCATE {table} CASCADE",
    ],
)
async def test_the_database_refuses(recorded: Database, table: str, statement: str) -> None:
    before = await rows(recorded, table)
    assert before
    with pytest.raises(asyncpg.RestrictViolationError, match=f"{table} rows are immutable"):
        await recorded.execute(statement.format(table=table))
    assert await rows(recorded, table) == before


@pytest.mark.parametrize("statement", ["TRUNCATE sessions CASCADE", "TRUNCATE tenants CASCADE"])
async def test_nothing_above_can_be_truncated_either(recorded: Database, statement: str) -> None:
    with pytest.raises(asyncpg.RestrictViolationError):
        await recorded.execute(statement)


async def test_deleting_a_session_without_naming_it_as_erased_is_refused(recorded: Database) -> None:
    with pytest.raises(asyncpg.RestrictViolationError):
        await recorded.execute("DELETE FROM sessions")
    assert len(await rows(recorded, "sessions")) == 2


@pytest.mark.wing("recall")
@pytest.mark.wing("warmings")
@pytest.mark.wing("webhooks")
async def test_erasing_takes_one_session_with_all_that_derives_from_it(recorded: Database) -> None:
    before = await of_session(recorded, "b")
    assert before == await of_session(recorded, "a")
    empty = sorted(table for table, number in before.items() if not number)
    assert not empty, f"no rows in {empty}: add a row to `record`"
    policies = await rows(recorded, "policies")
    assert await erase_session(recorded, DEFAULT_TENANT, "a") == [session_key(DEFAULT_TENANT, "a")]
    assert set((await of_session(recorded, "a")).values()) == {0}
    assert await of_session(recorded, "b") == before
    assert await rows(recorded, "policies") == policies


async def test_erasing_ends_with_its_transaction(recorded: Database) -> None:
    assert await erase_session(recorded, DEFAULT_TENANT, "a") == [session_key(DEFAULT_TENANT, "a")]
    for _ in range(8):  # reaches every connection of the pool
        with pytest.raises(asyncpg.RestrictViolationError):
            await recorded.execute("DELETE FROM events")
    assert await erase_session(recorded, DEFAULT_TENANT, "a") == []


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("DELETE FROM events", "events"),
        ("DELETE FROM epochs", "epochs"),
        ("DELETE FROM policies", "policies"),
        ("UPDATE events SET created_at = now()", "events"),
        ("TRUNCATE events", "events"),
    ],
)
async def test_erasing_one_session_opens_nothing_else(recorded: Database, statement: str, table: str) -> None:
    before = await rows(recorded, table)
    with pytest.raises(asyncpg.RestrictViolationError):
        async with recorded.transaction() as tx:
            key = str(session_key(DEFAULT_TENANT, "a"))
            await tx.execute("SELECT set_config('palimpsest.erasing', :key, true)", key=key)
            await tx.execute(statement)
    assert await rows(recorded, table) == before


async def test_over_http_erasing_leaves_nothing_and_the_name_free(
    recorded: Database, client: httpx.AsyncClient
) -> None:
    assert (await client.delete("/v1/sessions/a")).status_code == 204
    assert (await client.get("/v1/sessions/a")).status_code == 404
    assert (await client.delete("/v1/sessions/a")).status_code == 404
    again = await client.post("/v1/sessions/a/events", json=EVENTS)
    assert (again.status_code, again.json()["head"]) == (201, 2)
    assert (await client.get("/v1/sessions/b")).json()["head"] == 2


async def test_live_summaries_never_overlap(recorded: Database) -> None:
    with pytest.raises(asyncpg.ExclusionViolationError):
        await recorded.execute(SUMMARY, key=session_key(DEFAULT_TENANT, "a"), tenant=DEFAULT_TENANT)
    await recorded.execute("UPDATE summaries SET status = 'superseded'")
    await recorded.execute(SUMMARY, key=session_key(DEFAULT_TENANT, "a"), tenant=DEFAULT_TENANT)


async def test_a_redaction_changes_only_the_content(recorded: Database) -> None:
    key = session_key(DEFAULT_TENANT, "a")
    async with recorded.transaction() as tx:
        await tx.execute("SELECT set_config('palimpsest.redacting', :key, true)", key=str(key))
        await tx.execute("UPDATE events SET body = '{}' WHERE session_id = :key AND seq = 1", key=key)
    for change in ("seq = 99", "tokens = 0", "type = 'tools'", "tenant_id = gen_random_uuid()"):
        with pytest.raises(asyncpg.RestrictViolationError):
            async with recorded.transaction() as tx:
                await tx.execute("SELECT set_config('palimpsest.redacting', :key, true)", key=str(key))
                await tx.execute(f"UPDATE events SET {change} WHERE session_id = :key AND seq = 1", key=key)
    with pytest.raises(asyncpg.RestrictViolationError):
        await recorded.execute("UPDATE events SET body = '{}'")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE model_calls SET head = 0",
        "UPDATE model_calls SET manifest = '{}'",
        "UPDATE model_calls SET sha256 = ''",
        "UPDATE model_calls SET expires_at = now() - interval '1 day'",
        "DELETE FROM model_calls",
        "TRUNCATE model_calls",
    ],
)
async def test_of_a_calls_record_only_the_outcome_may_change(recorded: Database, statement: str) -> None:
    await recorded.execute("UPDATE model_calls SET reported_at = now(), input_tokens = 7, overflow = true")
    before = await rows(recorded, "model_calls")
    assert len(before) >= 2
    with pytest.raises(asyncpg.RestrictViolationError, match="model_calls rows are immutable"):
        await recorded.execute(statement)
    assert await rows(recorded, "model_calls") == before
