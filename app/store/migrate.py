"""Bring a database to the code's schema, or refuse one that is newer."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

import migrations

POSTGRES_MAJOR_MIN = 15
_LOCK = 0x70616C696D  # the key of an advisory lock, so that two migrations at once take turns


class DatabaseTooNew(Exception):
    """The database was migrated by a newer version of this program."""


class DatabaseBehind(Exception):
    """The database lacks migrations that this version needs."""


class PostgresTooOld(Exception):
    """The server is older than PostgreSQL 15."""


async def upgrade(url: str) -> None:
    """Migrate to the newest revision known here. Raises DatabaseTooNew or PostgresTooOld and changes nothing then."""
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_upgrade)
            await connection.commit()
    finally:
        await engine.dispose()


async def check(url: str) -> None:
    """Raise DatabaseTooNew, DatabaseBehind or PostgresTooOld unless the database is at the revision of this code."""
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            current = await connection.run_sync(_current)
    finally:
        await engine.dispose()
    if current != _script().get_current_head():
        raise DatabaseBehind("the database is not migrated to this version: run `palimpsest migrate`")


def config() -> Config:
    """Alembic's configuration, without a file."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return settings


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(config())


def _upgrade(connection: Connection) -> None:
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    _current(connection)
    settings = config()
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")


def _current(connection: Connection) -> str | None:
    """The database's revision. Raises PostgresTooOld or DatabaseTooNew."""
    version = int(connection.scalar(text("SHOW server_version_num")) or 0)
    if version // 10_000 < POSTGRES_MAJOR_MIN:
        raise PostgresTooOld(f"PostgreSQL {POSTGRES_MAJOR_MIN} or newer is needed, this is {version // 10_000}")
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in {script.revision for script in _script().walk_revisions()}:
        raise DatabaseTooNew(f"the database is at revision {current!r}, which is newer than this version knows")
    return current
