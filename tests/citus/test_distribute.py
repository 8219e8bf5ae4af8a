"""A database distributed over Citus' nodes: placement of tables, their constraints, and statements for one shard."""

from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import asyncpg
import pytest

from app.store import migrate, sessions
from app.store.dsn import normalize
from app.store.ids import session_key
from app.wings.shards import distribute
from app.wings.shards.distribute import CannotDistribute

pytestmark = [pytest.mark.citus, pytest.mark.wing("shards")]

SHARDS = 4
ACME, OTHER = UUID(int=1), UUID(int=2)
HELD = """
SELECT conname::text AS name FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgrelid::regclass::text !~ 'pgqueuer'
UNION SELECT polrelid::regclass || ': ' || pg_get_expr(polqual, polrelid) FROM pg_policy ORDER BY 1
"""
SPAN = (
    "INSERT INTO summaries (session_id, id, tenant_id, cover_id, depth, from_seq, to_seq, text, digest, tokens,"
    " source_tokens, events, turns, starts_at, ends_at, summarizer, usage, degraded, status)"
    " VALUES ($1, gen_random_uuid(), $2, $1, 0, $3, $4, '', '{}', 1, 1, 1, '{}', now(), now(), 's', '{}', false,"
    " 'live')"
)


async def connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url, statement_cache_size=0)


async def begin(connection: asyncpg.Connection, tenant_id: UUID, name: str) -> UUID:
    """Create a session with one event."""
    session_id = session_key(tenant_id, name)
    await connection.execute(
        "INSERT INTO sessions (session_id, tenant_id, external_id, estimator) VALUES ($1, $2, $3, 'chars')",
        session_id,
        tenant_id,
        name,
    )
    await connection.execute(
        "INSERT INTO events (session_id, tenant_id, seq, turn, type, pinned, is_error, tokens, cum_tokens, body)"
        " VALUES ($1, $2, 1, 1, 'user.message', false, false, 1, 1, '{}')",
        session_id,
        tenant_id,
    )
    return session_id


@pytest.fixture
async def spread(migrated_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Return the owner's connection to a database that held twenty sessions before it was distributed."""
    connection = await connect(migrated_url)
    await connection.execute("INSERT INTO tenants (tenant_id, name) VALUES ($1, 'acme')", ACME)
    await connection.execute("INSERT INTO tenants (tenant_id, name) VALUES ($1, 'other')", OTHER)
    for number in range(20):
        await begin(connection, ACME, f"s{number}")
    async with connection.transaction():
        await distribute.distribute_tables(connection, SHARDS)
    await connection.close()
    connection = await connect(migrated_url)  # new connections have the database's settings
    yield connection
    await connection.close()


async def test_existing_rows_are_distributed_by_session_to_both_workers(spread: asyncpg.Connection) -> None:
    assert await spread.fetchval("SELECT count(*) FROM sessions") == 20
    assert await spread.fetchval("SELECT count(*) FROM events JOIN sessions USING (session_id)") == 20
    nodes = await spread.fetch("SELECT nodeport, sum(shard_size) FROM citus_shards GROUP BY nodeport")
    assert len(nodes) >= 2
    for name in ("s1", "s2", "s3"):
        held = await spread.fetch(
            "SELECT DISTINCT nodeport FROM pg_dist_partition p JOIN pg_dist_shard s USING (logicalrelid)"
            " JOIN pg_dist_placement USING (shardid) JOIN pg_dist_node USING (groupid)"
            " WHERE partmethod = 'h' AND shardid = get_shard_id_for_distribution_column(p.logicalrelid, $1::uuid)",
            session_key(ACME, name),
        )
        assert len(held) == 1


async def test_every_table_has_its_place(spread: asyncpg.Connection) -> None:
    rows = await spread.fetch("SELECT logicalrelid::text AS name, partmethod::text AS how FROM pg_dist_partition")
    where = await distribute.tables(spread)
    assert {row["name"] for row in rows if row["how"] == "h"} == set(where.sharded) >= {"sessions", "events", "chain"}
    assert {row["name"] for row in rows if row["how"] == "n"} == set(where.copied) >= {"tenants", "policies"}
    assert set(where.local) == {
        *("alembic_version", "work_counts"),
        *("pgqueuer", "pgqueuer_log", "pgqueuer_schedules", "pgqueuer_statistics"),
    }


async def test_a_tenant_sees_its_own_rows_on_every_shard_and_nobody_sees_any(
    spread: asyncpg.Connection,
) -> None:
    seen = {}
    for tenant in (str(ACME), str(OTHER), ""):
        async with spread.transaction():
            await spread.execute(f"SET LOCAL role = palimpsest_app; SET LOCAL palimpsest.tenant = '{tenant}'")
            one = await spread.fetch("SELECT external_id FROM sessions WHERE session_id = $1", session_key(ACME, "s7"))
            seen[tenant] = await spread.fetchval("SELECT count(*) FROM events"), len(one)
    assert seen == {str(ACME): (20, 1), str(OTHER): (0, 0), "": (0, 0)}


async def test_a_row_cannot_be_written_for_another_tenant(spread: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        async with spread.transaction():
            await spread.execute(f"SET LOCAL role = palimpsest_app; SET LOCAL palimpsest.tenant = '{OTHER}'")
            await begin(spread, ACME, "mine")


async def test_the_log_is_immutable_on_the_shards_too_but_for_an_erasure(spread: asyncpg.Connection) -> None:
    session_id = session_key(ACME, "s4")
    with pytest.raises(asyncpg.PostgresError, match="immutable"):
        await spread.execute("UPDATE events SET tokens = 2 WHERE session_id = $1", session_id)
    with pytest.raises(asyncpg.PostgresError, match="immutable"):
        await spread.execute("DELETE FROM events WHERE session_id = $1", session_id)
    async with spread.transaction():
        await spread.execute(f"SET LOCAL palimpsest.erasing = '{session_id}'")
        await spread.execute("DELETE FROM sessions WHERE session_id = $1", session_id)
    assert await spread.fetchval("SELECT count(*) FROM events WHERE session_id = $1", session_id) == 0
    assert await spread.fetchval("SELECT count(*) FROM events") == 19


async def test_names_are_unique_and_no_event_is_covered_twice(spread: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.UniqueViolationError):
        await begin(spread, ACME, "s5")
    session_id = session_key(ACME, "s5")
    await spread.execute(SPAN, session_id, ACME, 1, 10)
    await spread.execute(SPAN, session_id, ACME, 11, 20)
    with pytest.raises(asyncpg.ExclusionViolationError):
        await spread.execute(SPAN, session_id, ACME, 20, 30)


async def test_every_hot_statement_goes_to_one_shard(spread: asyncpg.Connection, migrated_url: str) -> None:
    assert [one for one in await distribute.check(migrated_url) if not one.to_one_shard] == []


async def test_a_hot_statement_for_many_shards_aborts_the_distribution(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribute, "HOT", {"one": sessions.ONE, "all": "SELECT count(*) FROM sessions"})
    connection = await connect(migrated_url)
    before = [row["name"] for row in await connection.fetch(HELD)]
    with pytest.raises(CannotDistribute, match="all would not go to one shard: 4 tasks"):
        await distribute.distribute(migrated_url, SHARDS)
    assert [row["name"] for row in await connection.fetch(HELD)] == before
    assert await connection.fetchval("SELECT count(*) FROM pg_dist_partition") == 0
    with pytest.raises(CannotDistribute, match="is not distributed"):
        await distribute.check(migrated_url)
    await connection.close()


async def test_distributing_again_changes_nothing(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribute, "HOT", {"one": sessions.ONE})
    assert len(await distribute.plan_statements(migrated_url, SHARDS)) > 60
    await distribute.distribute(migrated_url, SHARDS)
    assert [one.to_one_shard for one in await distribute.check(migrated_url)] == [True]
    connection = await connect(migrated_url)
    shards = await connection.fetchval("SELECT array_agg(shardid ORDER BY shardid) FROM pg_dist_shard")
    assert await distribute.plan_statements(migrated_url, SHARDS) == []
    await distribute.distribute(migrated_url, SHARDS)
    assert await connection.fetchval("SELECT array_agg(shardid ORDER BY shardid) FROM pg_dist_shard") == shards
    await connection.close()


async def test_distributing_again_places_a_later_migrations_tables(migrated_url: str) -> None:
    """Covers down and up migrations of a table on every node, and a new table of a session's rows."""
    url = normalize(migrated_url)
    await distribute.distribute(migrated_url, SHARDS)
    await migrate.downgrade(url, "0022")
    await migrate.upgrade(url)
    connection = await connect(migrated_url)
    await connection.execute(
        "CREATE TABLE later (session_id uuid REFERENCES sessions ON DELETE CASCADE, n int, tenant_id uuid, "
        "PRIMARY KEY (session_id, n)); SELECT palimpsest_wall('later')"
    )
    await distribute.distribute(migrated_url, SHARDS)
    places = await connection.fetch(
        "SELECT logicalrelid::text AS name, partmethod, colocationid FROM pg_dist_partition "
        "WHERE logicalrelid::text IN ('content_keys', 'later', 'sessions', 'tenants') ORDER BY 1"
    )
    kept, later, root, tenants = places
    assert (kept["partmethod"], later["partmethod"]) == (b"n", b"h")
    assert (kept["colocationid"], later["colocationid"]) == (tenants["colocationid"], root["colocationid"])
    assert await distribute.plan_statements(migrated_url, SHARDS) == []
    assert [one for one in await distribute.check(migrated_url) if not one.to_one_shard] == []
    await connection.close()


async def test_a_coordinator_without_workers_and_a_login_that_may_not_are_refused(migrated_url: str) -> None:
    login = f"mere_{uuid4().hex[:8]}"
    connection = await connect(migrated_url)
    await connection.execute(f"CREATE ROLE {login} LOGIN")
    with pytest.raises(CannotDistribute, match="superuser"):
        await distribute.distribute(migrated_url.replace("//palimpsest@", f"//{login}@"), SHARDS)
    await connection.execute(
        "SELECT citus_remove_node(nodename, nodeport) FROM pg_dist_node WHERE groupid <> 0; DROP ROLE " + login
    )
    with pytest.raises(CannotDistribute, match="no worker"):
        await distribute.distribute(migrated_url, SHARDS)
    await connection.close()
