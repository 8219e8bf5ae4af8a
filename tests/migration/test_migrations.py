"""Migrations: from nothing, down and up again, no drift from the code's tables, and refusals that change nothing."""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import asyncpg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.store import migrate, sessions
from app.store.engine import Database, acting_for
from app.store.session_filter import SessionFilter
from migrations.tables import metadata

# Everything that a migration can create, in the server's own spelling.
CATALOG = """
    SELECT 'column', format('%s.%s %s null=%s default=%s', table_name, column_name, udt_name, is_nullable,
           coalesce(column_default, identity_generation))
    FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL SELECT 'constraint', format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conrelid <> 0
    UNION ALL SELECT 'index', indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT 'trigger', pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT 'function', pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT 'type', typname FROM pg_type WHERE typnamespace = 'public'::regnamespace
    UNION ALL SELECT 'options', format('%s %s', relname, reloptions) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND reloptions IS NOT NULL
    UNION ALL SELECT 'policy', format('%s %s %s', tablename, policyname, qual) FROM pg_policies
    UNION ALL SELECT 'rights', format('%s %s', relname, relacl) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relacl IS NOT NULL
"""


async def on(url: str, use: Callable[[Connection], Any]) -> Any:
    """Run a function on a connection in one transaction."""
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(use)
    finally:
        await engine.dispose()


async def run(url: str, statement: str) -> Any:
    def use(connection: Connection) -> Any:
        result = connection.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else None

    return await on(url, use)


async def catalog(url: str, *, without: tuple[str, ...] = ("alembic_version",)) -> set[tuple[str, str]]:
    rows = await run(url, CATALOG)
    return {(kind, what) for kind, what in rows if not any(name in what for name in without)}


def downgrade(connection: Connection, to: str = "base") -> None:
    config = migrate.config()
    config.attributes["connection"] = connection
    command.downgrade(config, to)


def upgrade(connection: Connection, to: str) -> None:
    config = migrate.config()
    config.attributes["connection"] = connection
    command.upgrade(config, to)


async def test_from_empty(url: str) -> None:
    with pytest.raises(migrate.DatabaseBehind):
        await migrate.check(url)
    await migrate.upgrade(url)
    await migrate.check(url)
    assert await run(url, "SELECT tenant_id, name FROM tenants") == [
        (uuid5(NAMESPACE_URL, "palimpsest:default"), "default")
    ]


async def test_again_changes_nothing(url: str) -> None:
    await migrate.upgrade(url)
    await run(url, "INSERT INTO tenants (tenant_id, name) VALUES (gen_random_uuid(), 'acme')")
    before = await catalog(url)
    await migrate.upgrade(url)
    assert await catalog(url) == before
    assert await run(url, "SELECT count(*) FROM tenants") == [(2,)]


async def test_concurrent_migrations_take_turns(url: str) -> None:
    await asyncio.gather(migrate.upgrade(url), migrate.upgrade(url), migrate.upgrade(url))
    await migrate.check(url)
    assert await run(url, "SELECT count(*) FROM tenants") == [(1,)]


async def test_no_drift_by_alembic(url: str) -> None:
    await migrate.upgrade(url)

    def differences(connection: Connection) -> list[Any]:
        def ours(_: object, name: str | None, kind: str, *__: object) -> bool:
            return kind != "table" or not str(name).startswith("pgqueuer")

        # The next test compares defaults: Alembic's comparison needs an equality operator, which JSON lacks.
        options = {"include_object": ours, "compare_type": True}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

    assert await on(url, differences) == []


async def test_no_drift_in_the_servers_catalog(empty: Callable[[], Any]) -> None:
    """This includes constraints, index expressions and storage options, which Alembic does not compare."""
    migrated, created = await empty(), await empty()
    await migrate.upgrade(migrated)
    await on(created, metadata.create_all)
    functions = (
        *("immutable", "compact", "recorded", "change", "deliver", "layer", "wall", "across", "hits"),
        *("distributed", "tell", "epoch_opened", "purge"),
    )
    not_ours = ("alembic_version", "pgqueuer", "session_changed", *(f"palimpsest_{name}" for name in functions))
    found = {row for row in await catalog(migrated, without=not_ours) if row[0] not in ("policy", "rights")}
    assert found == await catalog(created, without=not_ours)


async def test_a_session_changes_its_version_by_every_column_that_its_trigger_compares(url: str) -> None:
    """The trigger runs only for the columns it names; a change of a compared column missing there would be lost."""
    await migrate.upgrade(url)
    [[made]] = await run(url, "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'session_changed'")
    named = re.search(r"UPDATE OF (.*?) ON ", made)
    assert named is not None, made
    columns = named[1].split(", ")
    for side in ("old", "new"):
        assert re.findall(rf"\b{side}\.(\w+)", made, re.IGNORECASE) == columns
    await run(
        url,
        "INSERT INTO sessions (session_id, tenant_id, external_id, estimator) "
        "SELECT gen_random_uuid(), tenant_id, 's', 'heuristic' FROM tenants",
    )
    others = {"TEXT": "'other'", "INTEGER": "7", "BIGINT": "7"}
    for at, column in enumerate(columns, 1):
        value = others[str(metadata.tables["sessions"].c[column].type)]
        [[version]] = await run(url, f"UPDATE sessions SET {column} = {value} RETURNING version")
        assert version == at, column
        [[same]] = await run(url, f"UPDATE sessions SET {column} = {value}, head = head + 1 RETURNING version")
        assert same == version


async def test_down_and_up_again(url: str) -> None:
    nothing = await catalog(url)
    await migrate.upgrade(url)
    everything = await catalog(url)
    assert {kind for kind, _ in everything} >= {
        "column",
        "constraint",
        "index",
        "trigger",
        "function",
        "type",
        "policy",
        "rights",
    }
    await on(url, downgrade)
    assert await catalog(url) == nothing
    await migrate.upgrade(url)
    assert await catalog(url) == everything


async def test_down_with_data_in_it(url: str) -> None:
    """Immutable rows do not prevent dropping their tables."""
    nothing = await catalog(url)
    await migrate.upgrade(url)
    await run(
        url, "INSERT INTO policies (tenant_id, name, version, document) SELECT tenant_id, 'p', 1, '{}' FROM tenants"
    )
    await on(url, downgrade)
    assert await catalog(url) == nothing


async def test_down_leaves_no_key_that_reaches_further_than_it_did(url: str) -> None:
    """Earlier versions know neither prefixes nor expiry, so such keys are revoked."""
    await migrate.upgrade(url)
    await run(
        url,
        "INSERT INTO api_keys (key_id, tenant_id, name, secret_sha256, scopes, expires_at, session_prefix) "
        "SELECT gen_random_uuid(), tenant_id, k.key_name, k.key_name::bytea, '{read}', expires_at, prefix "
        "FROM tenants, (VALUES ('plain', NULL, NULL), ('ends', now() + interval '1 day', NULL), ('bound', NULL, 'a:')"
        ") AS k (key_name, expires_at, prefix)",
    )

    def to_before(connection: Connection) -> None:
        config = migrate.config()
        config.attributes["connection"] = connection
        command.downgrade(config, "0014-1")

    await on(url, to_before)
    rows = await run(url, "SELECT name, revoked_at IS NULL FROM api_keys ORDER BY name")
    assert rows == [("bound", False), ("ends", False), ("plain", True)]


async def test_row_security_covers_existing_rows_and_the_previous_version_works(url: str) -> None:
    await on(url, partial(upgrade, to="0012"))
    insert = (
        "INSERT INTO sessions (session_id, tenant_id, external_id, estimator) "
        "SELECT gen_random_uuid(), tenant_id, '{}', 'heuristic' FROM tenants RETURNING tenant_id"
    )
    await run(url, "INSERT INTO tenants (tenant_id, name) VALUES (gen_random_uuid(), 'acme')")
    [[first], [second]] = await run(url, insert.format("before"))
    await migrate.upgrade(url)
    await run(url, insert.format("by the version before"))  # which acts as the tables' owner
    database = Database(url, pool_size=1)
    try:
        assert await database.fetch("SELECT FROM sessions") == []
        for tenant_id in (first, second):
            with acting_for(tenant_id):
                names = [
                    row.external_id for row in (await sessions.page(database, tenant_id, 10, None, SessionFilter()))[0]
                ]
                assert sorted(names) == ["before", "by the version before"]
                assert len(await database.fetch("SELECT FROM sessions")) == 2
        await on(url, partial(downgrade, to="0012"))
        with acting_for(first), pytest.raises(asyncpg.InsufficientPrivilegeError):
            await database.fetch("SELECT FROM sessions")
    finally:
        await database.close()
    assert await run(url, "SELECT count(*) FROM sessions") == [(4,)]
    assert {kind for kind, _ in await catalog(url)}.isdisjoint({"policy"})


@pytest.mark.parametrize("act", [migrate.upgrade, migrate.check])
async def test_a_newer_database_is_refused(url: str, act: Callable[[str], Any]) -> None:
    await migrate.upgrade(url)
    await run(url, "UPDATE alembic_version SET version_num = 'from_the_future'")
    before = await catalog(url)
    with pytest.raises(migrate.DatabaseTooNew, match="from_the_future"):
        await act(url)
    assert await catalog(url) == before
    assert await run(url, "SELECT version_num FROM alembic_version") == [("from_the_future",)]


async def test_a_migration_refused_by_the_database_gives_its_error_and_changes_nothing(url: str) -> None:
    await run(url, "CREATE TABLE alembic_version (version_num varchar(32) NOT NULL)")
    await run(url, "CREATE TABLE sessions (mine int)")
    before = await catalog(url, without=())
    with pytest.raises(migrate.MigrationFailed, match='"sessions" already exists'):
        await migrate.upgrade(url)
    assert await catalog(url, without=()) == before


async def test_a_migration_that_is_not_given_a_lock_gives_up_and_may_be_run_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_ATTEMPTS", 2)
    monkeypatch.setattr(migrate, "LOCK_SECONDS", 0.1)
    await on(url, partial(upgrade, to="0018"))
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.begin() as left_open:
            await left_open.execute(text("LOCK TABLE search IN ACCESS SHARE MODE"))
            with pytest.raises(migrate.MigrationFailed, match="transaction left open"):
                await migrate.upgrade(url)
            assert await run(url, "SELECT version_num FROM alembic_version") == [("0018",)]
    finally:
        await engine.dispose()
    await migrate.upgrade(url)
    await migrate.check(url)


async def test_a_migration_gives_way_to_transactions_that_lock_in_another_order(url: str) -> None:
    """If the migration kept waiting, one of the two would lose a deadlock."""
    await on(url, partial(upgrade, to="0017"))
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.begin() as request:
            await request.execute(text("LOCK TABLE search IN ROW EXCLUSIVE MODE"))
            migrating = asyncio.create_task(migrate.upgrade(url))
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'search'::regclass"
            async with asyncio.timeout(60):
                while await run(url, waits) == [(0,)]:
                    assert not migrating.done()
            await request.execute(text("SELECT FROM sessions"))
        await migrating
    finally:
        await engine.dispose()
    await migrate.check(url)


async def test_back_to_an_earlier_schema_and_forth(url: str) -> None:
    await on(url, partial(upgrade, to="0017"))
    earlier = await catalog(url)
    await migrate.upgrade(url)
    await migrate.downgrade(url, "0017")
    assert await catalog(url) == earlier
    await migrate.downgrade(url, "0017")
    await migrate.upgrade(url)
    await migrate.check(url)


@pytest.mark.parametrize("wrapped", [b"key", None])
async def test_a_downgrade_with_sealed_contents_is_refused(url: str, wrapped: bytes | None) -> None:
    await migrate.upgrade(url)
    await run(url, "INSERT INTO tenants (tenant_id, name) VALUES (gen_random_uuid(), 't')")
    kept, dropped = ("'key'", "NULL") if wrapped else ("NULL", "now()")
    await run(
        url,
        f"INSERT INTO content_keys (tenant_id, wrapped, dropped_at) SELECT tenant_id, {kept}, {dropped} FROM tenants",
    )
    before = await catalog(url)
    with pytest.raises(migrate.MigrationFailed, match="contents are sealed"):
        await migrate.downgrade(url, "0022")
    assert await catalog(url) == before


@pytest.mark.parametrize("schema", ["0019", "9999", "base", "-1", ""])
async def test_only_a_downgrade_to_an_earlier_schema_is_permitted(url: str, schema: str) -> None:
    await on(url, partial(upgrade, to="0018"))
    before = await catalog(url)
    with pytest.raises(migrate.UnknownRevision, match="0018"):
        await migrate.downgrade(url, schema)
    assert await catalog(url) == before


def answering(version: str) -> Callable[..., Any]:
    """Return a `fetchval` of a connection to a server of that version."""
    real = asyncpg.Connection.fetchval

    async def fetchval(self: asyncpg.Connection, statement: str, *args: Any, **kwargs: Any) -> Any:
        if statement == "SHOW server_version_num":
            return version
        return await real(self, statement, *args, **kwargs)

    return fetchval


@pytest.mark.parametrize(("version", "major"), [("140012", 14), ("90624", 9)])
@pytest.mark.parametrize("act", [migrate.upgrade, migrate.check])
async def test_an_old_postgres_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], Any], version: str, major: int
) -> None:
    monkeypatch.setattr(asyncpg.Connection, "fetchval", answering(version))
    with pytest.raises(migrate.PostgresTooOld, match=f"15 or newer is needed, this is {major}"):
        await act(url)
    assert await catalog(url, without=()) == set()


async def test_the_oldest_postgres_that_will_do(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncpg.Connection, "fetchval", answering("150000"))
    await migrate.upgrade(url)
    await migrate.check(url)
