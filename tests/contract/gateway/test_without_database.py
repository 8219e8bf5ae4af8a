"""While Postgres is away, the gateway passes calls of recently accepted keys and refuses all others."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url
from structlog.testing import capture_logs

from app import tenants
from app.store.dsn import for_asyncpg
from app.store.engine import Database
from app.tenants import Tenants
from tests.conftest import serving
from tests.support.gateways import settings
from tests.support.provider import Provider
from tests.support.requesting import Loopback

pytestmark = pytest.mark.wing("gateway")

RAW = b'{"model":"m", "messages":[{"role":"user","content":"hi"}]}'
PATH = "/gateway/openai/v1/chat/completions"
OURS = "a-key-of-the-settings"


class Gate:
    """A gateway called with various keys, and the means to disconnect its database."""

    def __init__(self, http: httpx.AsyncClient, operator: asyncpg.Connection, database: str) -> None:
        self.http, self._operator, self._database = http, operator, database

    async def ask(self, key: str | None, session: str = "a:1") -> httpx.Response:
        headers = {"x-palimpsest-session": session} | ({} if key is None else {"x-palimpsest-key": key})
        return await self.http.post(PATH, content=RAW, headers=headers)

    async def status(self, key: str | None, session: str = "a:1") -> int:
        return (await self.ask(key, session)).status_code

    async def lose_database(self) -> None:
        await self._operator.execute(f"ALTER DATABASE {self._database} WITH ALLOW_CONNECTIONS false")
        await self._operator.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", self._database
        )


@pytest.fixture
def gate(database_url: str, postgres: str, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(tenants, "CACHE_SECONDS", 0.0)

    @asynccontextmanager
    async def served(**given: Any) -> AsyncIterator[Gate]:
        operator = await asyncpg.connect(for_asyncpg(postgres))
        try:
            async with (
                serving(settings(provider, **given), database_url) as url,
                httpx.AsyncClient(base_url=url, transport=Loopback(), timeout=30) as http,
            ):
                yield Gate(http, operator, str(make_url(database_url).database))
        finally:
            await operator.close()

    return served


async def key_of(database: Database, *scopes: str, prefix: str | None = None) -> str:
    made = await Tenants(database, None).create_key("default", "k", scopes or ["ingest", "read"], session_prefix=prefix)
    return made.secret


async def test_an_accepted_key_passes_within_its_prefix(
    gate: Callable[..., Any], database: Database, provider: Provider
) -> None:
    key, bound = await key_of(database), await key_of(database, prefix="a:")
    async with gate() as asking:
        assert await asking.status(key) == await asking.status(bound) == 200
        assert await asking.status(bound, "b:1") == 404
        await asking.lose_database()
        provider.requests.clear()
        with capture_logs() as lines:
            for one in (key, bound):
                answer = await asking.ask(one)
                assert (answer.status_code, answer.headers["x-palimpsest-mode"]) == (200, "bypass")
                assert answer.headers["x-palimpsest-reason"] == "store-unavailable"
        assert [line["reason"] for line in lines if line["event"] == "bypass"] == ["store-unavailable"] * 2
        assert await asking.status(bound, "b:1") == 404
        assert await asking.status(bound, "two words") == 422
        assert [asked.raw for asked in provider.requests] == [RAW, RAW]


REFUSALS = {
    "revoked": "UPDATE api_keys SET revoked_at = now() WHERE secret_sha256 = $1",
    "expired": "UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE secret_sha256 = $1",
    "unknown": "DELETE FROM api_keys WHERE secret_sha256 = $1",
    "lacking a scope": "UPDATE api_keys SET scopes = '{read}' WHERE secret_sha256 = $1",
}


@pytest.mark.parametrize("why", sorted(REFUSALS))
async def test_a_refused_key_stays_refused(
    gate: Callable[..., Any], database: Database, database_url: str, provider: Provider, why: str
) -> None:
    """The key was accepted before it was refused."""
    await key_of(database)
    key = await key_of(database)
    async with gate() as asking:
        assert await asking.status(key) == 200
        connection = await asyncpg.connect(for_asyncpg(database_url))
        assert await connection.execute(REFUSALS[why], tenants.digest(key)) in ("UPDATE 1", "DELETE 1")
        await connection.close()
        assert await asking.status(key) in (401, 403)
        await asking.lose_database()
        provider.requests.clear()
        answer = await asking.ask(key)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/store-unavailable")
        assert not provider.requests


async def test_keys_never_accepted_are_refused(
    gate: Callable[..., Any], database: Database, provider: Provider
) -> None:
    """Keys never used before, and no key where one is needed."""
    key, reader = await key_of(database), await key_of(database, "read")
    async with gate() as asking:
        assert await asking.status(reader) == 403
        assert await asking.status(None) == 401
        await asking.lose_database()
        for one in (key, reader, f"{key}x", ""):
            assert await asking.status(one) == 503
        assert await asking.status(None) == 401  # whether keys are needed is cached for good
        assert not provider.requests


async def test_an_accepted_key_expires(
    gate: Callable[..., Any], database: Database, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "RECENT_SECONDS", 0.0)
    key = await key_of(database)
    async with gate() as asking:
        assert await asking.status(key) == 200
        await asking.lose_database()
        assert await asking.status(key) == 503


async def test_an_open_server_stays_open_but_refuses_unchecked_keys(
    gate: Callable[..., Any], provider: Provider
) -> None:
    async with gate() as asking:
        assert await asking.status(None) == 200
        await asking.lose_database()
        assert await asking.status(None) == 200
        assert await asking.status("some-key") == 503


async def test_the_key_of_the_settings_needs_no_database(gate: Callable[..., Any], provider: Provider) -> None:
    async with gate(api_key=OURS) as asking:
        await asking.lose_database()
        assert await asking.status(OURS) == 200
        assert await asking.status(f"{OURS}x") == 503
        assert await asking.status(None) == 401


async def test_a_call_with_a_compaction_item_fails(gate: Callable[..., Any], provider: Provider) -> None:
    """No provider could read the item."""
    async with gate() as asking:
        headers = {"x-palimpsest-session": "a:1"}
        given = {"model": "m", "input": [{"role": "user", "content": "hi"}]}
        path = "/gateway/openai/v1/responses"
        made = await asking.http.post(f"{path}/compact", json=given, headers=headers)
        assert made.status_code == 200
        await asking.lose_database()
        held = {"model": "m", "input": [*made.json()["output"], {"role": "user", "content": "and now?"}]}
        refused = await asking.http.post(path, json=held, headers=headers)
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "store-unavailable")
        quoted = {"model": "m", "input": [{"role": "user", "content": made.text}]}
        assert (await asking.http.post(path, json=quoted, headers=headers)).status_code == 200
        assert [one.body for one in provider.requests] == [quoted]


async def test_a_requested_compaction_is_taken_out_of_a_bypass(gate: Callable[..., Any], provider: Provider) -> None:
    """The upstream would refuse the parameter. A call without a session passes as it is."""
    async with gate() as asking:
        given = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        asked = {**given, "context_management": {"edits": [{"type": "compact_20260112"}]}}
        beta = {"anthropic-beta": "compact-2026-01-12, other"}
        path = "/gateway/anthropic/v1/messages"
        assert (await asking.http.post(path, json=given)).status_code == 200
        await asking.lose_database()
        made = await asking.http.post(path, json=asked, headers={**beta, "x-palimpsest-session": "a:1"})
        assert (made.status_code, made.headers["x-palimpsest-reason"]) == (200, "store-unavailable")
        assert (provider.calls()[-1].body, provider.calls()[-1].header("anthropic-beta")) == (given, "other")
        assert (await asking.http.post(path, json=asked, headers=beta)).status_code == 400
        assert provider.requests[-1].body == asked
