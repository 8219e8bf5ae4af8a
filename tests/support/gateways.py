"""Clients of the gateway, and a reader of its background writes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import anthropic
import asyncpg
import httpx
import openai

from app.runtime.settings import Settings
from app.store.dsn import for_asyncpg
from tests.support.provider import Provider

KEY: Final = "sk-the-providers-key-123456"
SESSION: Final = {"x-palimpsest-session": "s"}
NO_WAIT_POLICY: Final = {"summarize": {"enabled": False}}
"""A policy with which no retry waits for a summary, since no worker runs."""
WRITES_SECONDS_MAX: Final = 20
"""More seconds than the gateway's background writes take."""
TELL: Final = (
    "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('changed', ''); "
    "RETURN NULL; END $$",
    "CREATE TRIGGER tell AFTER INSERT ON events EXECUTE FUNCTION tell()",
    "CREATE TRIGGER tell AFTER INSERT OR UPDATE ON model_calls EXECUTE FUNCTION tell()",
)
Json = dict[str, Any]
T = TypeVar("T")


def settings(provider: Provider, **given: Any) -> Settings:
    return Settings(gateway_anthropic_url=provider.url, gateway_openai_url=f"{provider.url}/v1", **given)


def claude(gateway: str, headers: dict[str, str] = SESSION) -> anthropic.AsyncAnthropic:
    url = f"{gateway}/gateway/anthropic"
    return anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, default_headers=headers)


def gpt(gateway: str, headers: dict[str, str] = SESSION) -> openai.AsyncOpenAI:
    url = f"{gateway}/gateway/openai/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, default_headers=headers)


class GatewayReader:
    """A reader of the gateway's writes after its responses.

    It repeats a read whenever the database notifies of a change, and without notifications, as on Citus, continuously.
    """

    def __init__(self, changed: asyncio.Event | None) -> None:
        self._changed = changed

    async def until(self, read: Callable[[], Awaitable[T]], ready: Callable[[T], bool]) -> T:
        """Return what `read` returns once it is ready, or its last value after WRITES_SECONDS_MAX."""
        found = await read()
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITES_SECONDS_MAX):
                while not ready(found):
                    if self._changed is not None:
                        await self._changed.wait()
                        self._changed.clear()
                    found = await read()
        return found

    async def logged(self, http: httpx.AsyncClient, number: int) -> list[Json]:
        """Return the session's events once there are `number` of them."""
        items = await self.until(lambda: events_of(http), lambda found: len(found) >= number)
        assert len(items) == number, [one["type"] for one in items]
        return items

    async def reported(self, http: httpx.AsyncClient, call: str, session: str = "s") -> Json:
        """Return a call's record once it has an outcome."""
        path = f"/v1/sessions/{session}/calls/{call}"
        record = await self.until(lambda: _json(http, path), lambda found: bool(found.get("outcome")))
        assert record.get("outcome"), record
        return record

    async def called(self, http: httpx.AsyncClient) -> list[Json]:
        """Return the session's calls once there is one."""
        page = await self.until(lambda: _json(http, "/v1/sessions/s/calls"), lambda found: bool(found["items"]))
        items: list[Json] = page["items"]
        return items


@asynccontextmanager
async def gateway_reader(database_url: str) -> AsyncIterator[GatewayReader]:
    """Make a database notify of every change to its events and calls."""
    changed = asyncio.Event()
    connection = await asyncpg.connect(for_asyncpg(database_url))
    try:
        await connection.add_listener("changed", lambda *_: changed.set())
        notifies = not await connection.fetchval("SELECT to_regclass('pg_dist_node') IS NOT NULL")
        for statement in TELL if notifies else ():
            await connection.execute(statement)
        yield GatewayReader(changed if notifies else None)
    finally:
        await connection.close()


async def events_of(http: httpx.AsyncClient) -> list[Json]:
    items: list[Json] = (await _json(http, "/v1/sessions/s/events?limit=1000")).get("items", [])
    return items


async def _json(http: httpx.AsyncClient, path: str) -> Json:
    found: Json = (await http.get(path)).json()
    return found
