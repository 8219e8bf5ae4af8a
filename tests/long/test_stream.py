"""A reader killed 100 times during 10,000 appends to two API processes gets each event once, in order."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.store.engine import Database
from tests.acceptance.conftest import Commands
from tests.support.sse import Event, streaming, take

pytestmark = [pytest.mark.long, pytest.mark.wing("stream")]

SEED = 20_261_121
WRITERS = 4
EVENTS = 10_000
KILLS = 100
APPENDS_A_CONTEXT = 250
SECONDS_MAX = 1_200
SESSION = "/v1/sessions/s"


@pytest.fixture
async def commands(tmp_path: Path) -> AsyncIterator[Commands]:
    """Return a starter of commands; all are killed at the end."""
    running = Commands(tmp_path)
    yield running
    await running.kill_all()


async def write(http: httpx.AsyncClient, writer: int) -> None:
    for number in range(EVENTS // WRITERS):
        event = {"type": "user.message", "id": f"{writer}.{number}", "content": f"{number} of {writer}"}
        (await http.post(f"{SESSION}/events", json={"events": [event]})).raise_for_status()
        if number % APPENDS_A_CONTEXT == 0:  # a window of another size opens an epoch
            window = {"view": f"v{writer}", "max_tokens": 8_000 + number}
            (await http.get(f"{SESSION}/context", params=window)).raise_for_status()


async def read(urls: list[str], messages: int, chance: random.Random) -> list[Event]:
    """Read `messages` messages, with a reader that is killed at random points and loses what it has not read."""
    found: list[Event] = []
    for stop in [*sorted(chance.choices(range(messages), k=KILLS)), messages]:
        last_id = found[-1].id if found else None
        async with streaming(chance.choice(urls), f"{SESSION}/stream", last_id=last_id) as events:
            found += await take(events, stop - len(found))
    return found


async def listed(http: httpx.AsyncClient, path: str, **params: Any) -> list[dict[str, Any]]:
    items, cursor = [], {}
    while True:
        page = (await http.get(f"{SESSION}/{path}", params={"limit": 500, **params, **cursor})).json()
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        cursor = {"cursor": page["next_cursor"]}


async def test_each_event_once_and_in_order(commands: Commands, database_url: str, database: Database) -> None:
    urls = [await (await commands.start("api", DATABASE_URL=database_url)).url() for _ in range(2)]
    async with (
        asyncio.timeout(SECONDS_MAX),
        httpx.AsyncClient(base_url=urls[0], timeout=60) as one,
        httpx.AsyncClient(base_url=urls[1], timeout=60) as other,
    ):
        await one.put(SESSION, json={})
        epochs = WRITERS * (EVENTS // WRITERS // APPENDS_A_CONTEXT)
        reading = asyncio.create_task(read(urls, EVENTS + epochs, random.Random(SEED)))
        await asyncio.gather(*(write((one, other)[writer % 2], writer) for writer in range(WRITERS)))
        found = await reading
        told = {kind: [event.data for event in found if event.kind == kind] for kind in ("appended", "epoch")}
        assert [event["seq"] for event in told["appended"]] == list(range(1, EVENTS + 1))
        assert told["appended"] == await listed(one, "events")
        assert len(told["epoch"]) == epochs
        for writer in range(WRITERS):
            numbers = [epoch["epoch"] for epoch in told["epoch"] if epoch["view"] == f"v{writer}"]
            assert numbers == [epoch["epoch"] for epoch in await listed(one, "epochs", view=f"v{writer}")]
    row = await database.fetchrow("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert row is not None
    assert row["deadlocks"] == 0, "an append's way to its session's row crosses another's"
