"""Contents encrypted with a key per tenant: illegible in the database, and lost once the key is dropped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg
import httpx
import pytest
from cryptography.fernet import Fernet

from app import worker
from app.core.errors import StoreUnavailable
from app.runtime import wiring
from app.runtime.settings import InvalidSetting, Settings, load
from app.store.engine import Database, acting_for
from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT
from app.wings.sealing import service
from app.wings.sealing import service as content_keys
from app.wings.sealing.service import rewrap
from tests.conftest import serving
from tests.support.databases import tables_containing
from tests.support.pooler import pooled
from tests.support.queue import worker_queue
from tests.support.requesting import Loopback
from tests.support.tenants import tenant
from tests.support.walk import TALE

OPERATOR = Fernet.generate_key().decode()


@pytest.fixture
def encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give servers and workers the operator's key, and disable the cache of tenants' keys."""
    monkeypatch.setenv("PALIMPSEST_ENCRYPTION_KEY", OPERATOR)
    monkeypatch.setattr(service, "CACHE_SECONDS", 0.0)


@asynccontextmanager
async def serving_client(database_url: str, secret: str = "", **settings: bool) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a server with the current settings."""
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    async with (
        serving(Settings(), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=60, transport=Loopback(), headers=headers) as http,
    ):
        yield http


async def post(http: httpx.AsyncClient, sid: str, text: str) -> None:
    """Append a user message."""
    event = {"type": "user.message", "content": text}
    answer = await http.post(f"/v1/sessions/{sid}/events", json={"events": [event]})
    assert answer.is_success, answer.text


async def context_messages(http: httpx.AsyncClient, sid: str) -> str:
    """Return the messages of a session's next context."""
    answer = await http.post(f"/v1/sessions/{sid}/context", json={"format": "openai", "max_tokens": 50_000})
    assert answer.is_success, answer.text
    return str(answer.json()["request"]["messages"])


async def recall_text(http: httpx.AsyncClient, sid: str, query: str) -> str:
    """Return the text of a recall response."""
    answer = await http.post(f"/v1/sessions/{sid}/recall", json={"query": query})
    assert answer.is_success, answer.text
    return answer.text


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and slug of a problem."""
    return answer.status_code, answer.json()["type"].rpartition("/")[2]


@pytest.mark.usefixtures("encrypted", "fast_retries")
async def test_dropping_a_key_erases_the_contents(database_url: str, database: Database) -> None:
    ours, our_id = await tenant(database, "ours")
    theirs, _ = await tenant(database, "theirs")
    async with serving_client(database_url, ours) as http:
        await post(http, "s", "The launch code is kumquat.")
        await post(http, "s", TALE * 30)
        assert "kumquat" in await context_messages(http, "s")
        assert await content_keys.drop_key(database, "ours")
        assert not await content_keys.drop_key(database, "ours")
        for method, path in (("GET", "/v1/sessions/s"), ("POST", "/v1/sessions/s/context"), ("PUT", "/v1/sessions/n")):
            answer = await http.request(method, path, json=None if method == "GET" else {})
            assert problem(answer) == (410, "contents-erased")
        other = await http.put("/v1/sessions/s", json={}, headers={"Authorization": f"Bearer {theirs}"})
        assert other.status_code == 201
        assert (await http.get("/readyz")).status_code == 200
    assert await tables_containing(database, "kumquat") == set()
    asked = {"session_id": session_key(our_id, "s"), "tenant_id": our_id}
    await database.execute("SELECT palimpsest_compact(:session_id, :tenant_id)", **asked)
    stop = asyncio.Event()
    work = wiring.worker_work(pooled(Settings(), database_url))
    async with worker_queue(database_url) as done, asyncio.TaskGroup() as running:
        running.create_task(worker.run(database_url, stop, work))
        await done()  # the job ends and is not retried
        stop.set()
    row = await database.fetchrow("SELECT count(*) AS n FROM summaries")
    assert row is not None and row["n"] == 0


@pytest.mark.wing("recall")
async def test_unencrypted_contents_stay_readable_and_searchable_with_encrypted_ones(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_client(database_url) as http:
        await post(http, "s", "The tangerine is on the table.")
        assert "tangerine" in await recall_text(http, "s", "tangerine")
    monkeypatch.setenv("PALIMPSEST_ENCRYPTION_KEY", OPERATOR)
    async with serving_client(database_url) as http:
        await post(http, "s", "The aubergine is in the cellar.")
        shown = await context_messages(http, "s")
        assert "tangerine" in shown and "aubergine" in shown
        assert "tangerine" in await recall_text(http, "s", "tangerine")
        assert "aubergine" in await recall_text(http, "s", "aubergine")
    assert await tables_containing(database, "tangerine") == {"public.events"}
    assert await tables_containing(database, "aubergine") == set()


@pytest.mark.usefixtures("encrypted")
async def test_a_process_without_the_key_changes_nothing(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_client(database_url) as http:
        await post(http, "s", "Sealed.")
    for given in (None, Fernet.generate_key().decode()):
        monkeypatch.delenv("PALIMPSEST_ENCRYPTION_KEY")
        if given is not None:
            monkeypatch.setenv("PALIMPSEST_ENCRYPTION_KEY", given)
        async with serving_client(database_url) as http:
            event = {"type": "user.message", "content": "In the open."}
            answer = await http.post("/v1/sessions/s/events", json={"events": [event]})
            assert problem(answer) == (503, "store-unavailable")
            assert "PALIMPSEST_ENCRYPTION_KEY" in answer.json()["detail"]
        monkeypatch.setenv("PALIMPSEST_ENCRYPTION_KEY", OPERATOR)
    async with serving_client(database_url) as http:
        assert (await http.get("/v1/sessions/s")).json()["head"] == 1


@pytest.mark.usefixtures("encrypted")
async def test_the_operators_key_is_changed_without_encrypting_contents_again(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = Fernet.generate_key().decode()
    async with serving_client(database_url) as http:
        await post(http, "s", "Before the change.")
    with pytest.raises(StoreUnavailable, match="default"):
        await rewrap(database, newer)
    assert await rewrap(database, f"{newer},{OPERATOR}") == 1
    monkeypatch.setenv("PALIMPSEST_ENCRYPTION_KEY", newer)
    async with serving_client(database_url) as http:
        assert "Before the change." in await context_messages(http, "s")


def test_an_invalid_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_ENCRYPTION_KEY", "a word")
    with pytest.raises(InvalidSetting, match="PALIMPSEST_ENCRYPTION_KEY must be one or several keys"):
        load()


@pytest.mark.parametrize(
    "statement", ["UPDATE content_keys SET wrapped = NULL, dropped_at = now()", "DELETE FROM content_keys"]
)
async def test_a_server_cannot_drop_a_tenants_key(application: Database, database: Database, statement: str) -> None:
    with acting_for(DEFAULT_TENANT):
        await content_keys.store_key(application, DEFAULT_TENANT, b"wrapped")
        with suppress(asyncpg.InsufficientPrivilegeError):  # on Citus the statement matches no row
            await application.execute(statement)
    [row] = await database.fetch("SELECT wrapped FROM content_keys")
    assert row["wrapped"] == b"wrapped"
