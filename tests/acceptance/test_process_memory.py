"""A server's process loads only the modules it uses, and loads them once."""

import asyncio
import re
import sys
from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import pytest

from tests.acceptance.conftest import Command, Commands

MEGABYTE = 2**20
FRESH_MAX = 190 * MEGABYTE
"""Python, its libraries and the application take 75 MB of it, and the vocabularies of both tokenizers 70."""
MIGRATING = {"alembic", "mako", "sqlalchemy"}
WORKING = {"pgqueuer", "httpx2"}
VENDORS = {"anthropic", "mcp", "openai"}
TRACING = {"opentelemetry.sdk", "opentelemetry.exporter"}
"""FastAPI imports the API of OpenTelemetry, which is inactive without these."""


HEAP_BYTES = 64 * MEGABYTE
"""Address space that glibc reserves for each further heap, aligned to that size; most of it is never used."""
_MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (....) \S+ \S+ 0\s*$", re.MULTILINE)


@pytest.fixture
def _telling_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")


async def imported(command: Command) -> set[str]:
    """Stop a command; return the packages that it had imported, and of TRACING the modules."""
    status, errors = await command.stop()
    assert status == 0
    names = [line.rpartition("|")[2].strip() for line in errors if line.startswith("import time:")]
    return {name.partition(".")[0] for name in names} | TRACING.intersection(names)


@pytest.mark.usefixtures("_telling_imports")
async def test_an_api_process_loads_only_what_it_uses(commands: Commands, database_url: str) -> None:
    api = await commands.start_fresh("api", DATABASE_URL=database_url)
    async with httpx.AsyncClient(base_url=await api.url(), timeout=30) as client:
        assert (await client.get("/readyz")).status_code == 200
    resident = psutil.Process(api.process.pid).memory_info().rss
    found = await imported(api)
    unused = MIGRATING | WORKING | VENDORS | TRACING
    assert found.isdisjoint(unused), found & unused
    assert {"asyncpg", "fastapi", "tiktoken"} <= found
    assert resident < FRESH_MAX, f"{resident / MEGABYTE:.0f} MB"


@pytest.mark.wing("webhooks")  # with httpx2
@pytest.mark.usefixtures("_telling_imports")
async def test_a_server_on_a_migrated_database_does_not_load_migrations(commands: Commands, database_url: str) -> None:
    server = await commands.start_fresh("serve", DATABASE_URL=database_url)
    await server.url()
    found = await imported(server)
    unused = MIGRATING | VENDORS | TRACING
    assert found.isdisjoint(unused), found & unused
    assert found >= WORKING


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
async def test_threads_share_one_heap(commands: Commands, database_url: str) -> None:
    api = await commands.start("api", DATABASE_URL=database_url)
    process = psutil.Process(api.process.pid)
    body = {"events": [{"type": "user.message", "content": "words " * 20_000}]}
    async with httpx.AsyncClient(base_url=await api.url(), timeout=60) as client:
        sent = [client.post(f"/v1/sessions/s{number}/events", json=body) for number in range(8)]
        assert {answer.status_code for answer in await asyncio.gather(*sent)} == {201}
    assert process.num_threads() > 1  # a text of that size is counted in a thread
    assert further_heaps(process.pid) == []


def further_heaps(pid: int) -> list[int]:
    """Return the addresses of a process's further heaps: used at the beginning, reserved up to their end."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    mapped = [(int(start, 16), int(end, 16), rights) for start, end, rights in _MAPPED.findall(maps)]
    return [
        start
        for (start, end, rights), (then, last, reserved) in pairwise(mapped)
        if (start % HEAP_BYTES, then - end, last - start) == (0, 0, HEAP_BYTES)
        and (rights, reserved) == ("rw-p", "---p")
    ]
