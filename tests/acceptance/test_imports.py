"""What a server's process holds before anybody asked for anything: only what it uses."""

import httpx
import psutil
import pytest

from tests.acceptance.conftest import Command, Commands

MEGABYTE = 2**20
FRESH_MAX = 190 * MEGABYTE
"""Of which Python, its libraries and the application take 75, and the vocabularies of both tokenizers 70."""
MIGRATING = {"alembic", "mako", "sqlalchemy"}
WORKING = {"pgqueuer", "httpx"}
VENDORS = {"anthropic", "mcp", "openai"}


@pytest.fixture(autouse=True)
def _telling_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")


async def imported(command: Command) -> set[str]:
    """The packages that a command has imported, once it is asked to stop and has ended."""
    status, errors = await command.stop()
    assert status == 0
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in errors if line.startswith("import time:")}


async def test_an_api_process_holds_what_it_uses(commands: Commands, database_url: str) -> None:
    api = await commands.start_fresh("api", DATABASE_URL=database_url)
    async with httpx.AsyncClient(base_url=await api.url(), timeout=30) as client:
        assert (await client.get("/readyz")).status_code == 200
    resident = psutil.Process(api.process.pid).memory_info().rss
    found = await imported(api)
    assert found.isdisjoint(MIGRATING | WORKING | VENDORS), found & (MIGRATING | WORKING | VENDORS)
    assert {"asyncpg", "fastapi", "tiktoken"} <= found
    assert resident < FRESH_MAX, f"{resident / MEGABYTE:.0f} MB"


async def test_a_server_on_a_migrated_database_holds_nothing_that_migrates(
    commands: Commands, database_url: str
) -> None:
    server = await commands.start_fresh("serve", DATABASE_URL=database_url)
    await server.url()
    found = await imported(server)
    assert found.isdisjoint(MIGRATING | VENDORS), found & (MIGRATING | VENDORS)
    assert found >= WORKING
