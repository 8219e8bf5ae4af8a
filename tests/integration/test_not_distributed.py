"""`palimpsest distribute` without Citus: one line names the missing extension, and nothing is changed."""

import asyncio

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.store.engine import Database

pytestmark = pytest.mark.wing("shards")

EVERYTHING = (
    "SELECT (SELECT count(*) FROM pg_constraint) AS constraints, (SELECT count(*) FROM pg_trigger) AS triggers,"
    " (SELECT count(*) FROM pg_extension) AS extensions, (SELECT rolcanlogin FROM pg_roles"
    " WHERE rolname = 'palimpsest_app') AS may_log_in"
)


@pytest.mark.parametrize(
    ("option", "said"),
    [([], "has no Citus"), (["--dry-run"], "has no Citus"), (["--check"], "is not distributed")],
)
async def test_a_database_without_citus_is_refused_and_stays_as_it_was(
    database: Database, database_url: str, option: list[str], said: str
) -> None:
    before = await database.fetchrow(EVERYTHING)
    arguments = ["distribute", "--database-url", database_url, *option]
    ended = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert ended.exit_code == 1
    assert ended.stderr.startswith("palimpsest: ") and said in ended.stderr
    assert await database.fetchrow(EVERYTHING) == before
