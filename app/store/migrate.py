"""The state of a database before a server starts: its migrations, and the check that it isolates tenants.

SQLAlchemy and Alembic are imported only to run a migration: they would take a sixth of a server's memory.
"""

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import asyncpg

import migrations
from app.store.driver import connect
from app.store.engine import ROLE

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection


POSTGRES_MAJOR_MIN: Final = 15
LOCK_SECONDS: Final = 0.5
"""Time that a migration waits for locks, delaying requests, and then pauses. Half of Postgres' `deadlock_timeout`."""
LOCK_ATTEMPTS: Final = 60
_FOLDER: Final = Path(migrations.__file__).parent
_LOCK: Final = 0x70616C696D  # the key of an advisory lock, so that concurrent migrations take turns
_REVISION: Final = re.compile(r"\d{8}_(\d{4})_\w+\.py")


class DatabaseTooNew(Exception):
    """The database was migrated by a newer version of this program."""


class DatabaseBehind(Exception):
    """The database lacks migrations that this version needs."""


class UnknownRevision(Exception):
    """The database cannot be downgraded to this schema."""


class PostgresTooOld(Exception):
    """The server is older than PostgreSQL 15."""


class MigrationFailed(Exception):
    """A migration failed and has changed nothing; the message is the database's, or says that tables stayed locked."""


async def upgrade(url: str) -> None:
    """Migrate to the newest schema. Raises DatabaseTooNew, PostgresTooOld or MigrationFailed, changing nothing."""
    connection = await connect(url)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)  # until the connection is closed
        if await _current(connection) != revisions()[-1]:
            await _run("upgrade", url, "head")
    finally:
        await connection.close()


async def downgrade(url: str, revision: str) -> None:
    """Undo all migrations after `revision`. Raises UnknownRevision, and the errors of `upgrade`."""
    connection = await connect(url)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
        current = await _current(connection)
        if current is None or revision not in revisions() or revision > current:
            raise UnknownRevision(
                f"the database is at schema {current or 'none'}: there is no way back to {revision!r}"
            )
        await _run("downgrade", url, revision)
    finally:
        await connection.close()


async def check(url: str) -> None:
    """Raise DatabaseTooNew, DatabaseBehind or PostgresTooOld unless the database is at this code's schema."""
    connection = await connect(url)
    try:
        current = await _current(connection)
    finally:
        await connection.close()
    if current != revisions()[-1]:
        raise DatabaseBehind("the database is not migrated to this version: run `palimpsest migrate`")


def revisions() -> list[str]:
    """Return all known schemas, oldest first, by the names of their files."""
    return sorted(found[1] for file in (_FOLDER / "versions").iterdir() if (found := _REVISION.fullmatch(file.name)))


def config() -> "Config":
    """Return Alembic's configuration, without a file."""
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", str(_FOLDER))
    return settings


async def _run(way: Literal["upgrade", "downgrade"], url: str, revision: str) -> None:
    """Run or undo the migrations in one transaction that first locks all tables."""
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool, async_creator=partial(connect, url))
    try:
        for _ in range(LOCK_ATTEMPTS):
            async with engine.begin() as connection:
                if await connection.run_sync(_lock):
                    return await connection.run_sync(_migrate, way, revision)
                await connection.rollback()
            await asyncio.sleep(LOCK_SECONDS)
        raise MigrationFailed("the tables could not be locked: is a transaction left open, or a dump being made?")
    except (SQLAlchemyError, asyncpg.PostgresError) as error:
        raise MigrationFailed(str(getattr(error, "orig", None) or error)) from error
    finally:
        await engine.dispose()


def _lock(connection: "Connection") -> bool:
    """Lock all existing tables, or none; return whether they were locked.

    Servers are running, and their transactions take locks in an order of their own. No request waits for as long as
    Postgres takes to look for a deadlock, so none is aborted because of one.
    """
    from sqlalchemy import inspect, text
    from sqlalchemy.exc import DBAPIError

    from migrations.tables import metadata

    existing = set(inspect(connection).get_table_names())
    tables = [name for name in sorted(metadata.tables, key=lambda name: (name != "sessions", name)) if name in existing]
    if tables:
        connection.execute(text(f"SET LOCAL statement_timeout = '{LOCK_SECONDS}s'"))
        try:
            connection.execute(text(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE"))
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != asyncpg.QueryCanceledError.sqlstate:
                raise
            return False
        connection.execute(text("SET LOCAL statement_timeout TO DEFAULT"))
    return True


def _migrate(connection: "Connection", way: Literal["upgrade", "downgrade"], revision: str) -> None:
    from alembic import command

    settings = config()
    settings.attributes["connection"] = connection
    getattr(command, way)(settings, revision)


async def _current(connection: asyncpg.Connection) -> str | None:
    """Return the database's schema; None if it has none. Raises PostgresTooOld or DatabaseTooNew."""
    version = int(await connection.fetchval("SHOW server_version_num"))
    if version // 10_000 < POSTGRES_MAJOR_MIN:
        raise PostgresTooOld(f"PostgreSQL {POSTGRES_MAJOR_MIN} or newer is needed, this is {version // 10_000}")
    if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
        return None
    current: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
    if current is not None and current not in revisions():
        raise DatabaseTooNew(f"the database is at schema {current!r}, which is newer than this version knows")
    return current


_OURS: Final = "polname = 'palimpsest_tenant'"
_FIND_TABLES: Final = "SELECT count(*) FILTER (WHERE pg_table_is_visible(polrelid)) FROM pg_policy WHERE " + _OURS
_HELD: Final = "SELECT coalesce(bool_and(row_security_active(polrelid)), false) FROM pg_policy WHERE " + _OURS


class TenantIsolationError(Exception):
    """The database would show one tenant's rows to another, or no rows at all; the message says how to fix it."""


async def check_isolation(url: str) -> None:
    """Raise TenantIsolationError unless this login may act as the application's role under row-level security."""
    try:
        connection = await connect(url, server_settings={"role": ROLE})
    except (asyncpg.InvalidParameterValueError, asyncpg.InsufficientPrivilegeError) as error:
        raise TenantIsolationError(f"this login may not act as the role {ROLE}: GRANT {ROLE} TO it ({error})") from None
    try:
        if not await connection.fetchval(_FIND_TABLES):
            raise TenantIsolationError(
                f"the role {ROLE} does not find the tables: have this login's search_path name their schema"
            )
        if not await connection.fetchval(_HELD):
            raise TenantIsolationError(
                f"the role {ROLE} would see every tenant's rows: it must not be a superuser, have BYPASSRLS,"
                " own tables, or be a member of the role that owns them"
            )
    finally:
        await connection.close()


async def check_owner(url: str) -> None:
    """Raise TenantIsolationError unless this login sees every tenant's rows, as commands about all tenants need."""
    connection = await connect(url)
    try:
        if await connection.fetchval("SELECT bool_or(row_security_active(polrelid)) FROM pg_policy WHERE " + _OURS):
            problem = "this login does not see every tenant's rows: use the login that migrates and owns the tables"
            raise TenantIsolationError(problem)
    finally:
        await connection.close()
