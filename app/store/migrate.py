"""Bring a database to the code's schema, or refuse one that is newer.

SQLAlchemy and Alembic, which run migrations, are imported to run one: they would be a sixth of a server's memory.
"""

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

import migrations
from app.store.connecting import connect

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection

POSTGRES_MAJOR_MIN: Final = 15
_FOLDER: Final = Path(migrations.__file__).parent
_LOCK: Final = 0x70616C696D  # the key of an advisory lock, so that two migrations at once take turns
_REVISION: Final = re.compile(r"\d{8}_(\d{4})_\w+\.py")


class DatabaseTooNew(Exception):
    """The database was migrated by a newer version of this program."""


class DatabaseBehind(Exception):
    """The database lacks migrations that this version needs."""


class PostgresTooOld(Exception):
    """The server is older than PostgreSQL 15."""


class MigrationFailed(Exception):
    """A migration was refused by the database and has changed nothing; the message is the database's."""


async def upgrade(url: str) -> None:
    """Migrate to the newest revision known here.

    Raises DatabaseTooNew or PostgresTooOld, and changes nothing then, or MigrationFailed.
    """
    connection = await connect(url)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)  # until the connection is closed
        if await _current(connection) != revisions()[-1]:
            await _upgrade(url)
    finally:
        await connection.close()


async def check(url: str) -> None:
    """Raise DatabaseTooNew, DatabaseBehind or PostgresTooOld unless the database is at the revision of this code."""
    connection = await connect(url)
    try:
        current = await _current(connection)
    finally:
        await connection.close()
    if current != revisions()[-1]:
        raise DatabaseBehind("the database is not migrated to this version: run `palimpsest migrate`")


def revisions() -> list[str]:
    """Every revision known here, oldest first, by the names of their files."""
    return sorted(found[1] for file in (_FOLDER / "versions").iterdir() if (found := _REVISION.fullmatch(file.name)))


def config() -> "Config":
    """Alembic's configuration, without a file."""
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", str(_FOLDER))
    return settings


async def _upgrade(url: str) -> None:
    """Run what migrations there are to run, in one transaction."""
    from alembic import command
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    def run(connection: "Connection") -> None:
        settings = config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, "head")

    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool, async_creator=partial(connect, url))
    try:
        async with engine.begin() as connection:
            await connection.run_sync(run)
    except (SQLAlchemyError, asyncpg.PostgresError) as error:
        raise MigrationFailed(str(getattr(error, "orig", None) or error)) from error
    finally:
        await engine.dispose()


async def _current(connection: asyncpg.Connection) -> str | None:
    """The database's revision. Raises PostgresTooOld or DatabaseTooNew."""
    version = int(await connection.fetchval("SHOW server_version_num"))
    if version // 10_000 < POSTGRES_MAJOR_MIN:
        raise PostgresTooOld(f"PostgreSQL {POSTGRES_MAJOR_MIN} or newer is needed, this is {version // 10_000}")
    if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
        return None
    current: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
    if current is not None and current not in revisions():
        raise DatabaseTooNew(f"the database is at revision {current!r}, which is newer than this version knows")
    return current
