"""All operations with encrypted contents, and the whole database searched for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from cryptography.fernet import Fernet

from app.runtime.settings import Settings
from app.store.engine import Database
from app.wings.sealing import service
from tests.conftest import serving
from tests.contract.store.test_tenant_isolation import working
from tests.support.databases import tables_containing
from tests.support.receiver import receiving
from tests.support.requesting import Loopback
from tests.support.tenants import tenant
from tests.support.walk import SECRET_WORD, walk

pytestmark = pytest.mark.wing("all")  # the walk uses them


@asynccontextmanager
async def serving_client(database_url: str, secret: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a server that may call local webhooks."""
    async with (
        serving(Settings.model_validate({"webhook_private_targets": True}), database_url) as url,
        httpx.AsyncClient(
            base_url=url, timeout=60, transport=Loopback(), headers={"Authorization": f"Bearer {secret}"}
        ) as http,
    ):
        yield http


async def test_no_table_holds_readable_contents_and_all_are_served(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All operations run, with a worker; a session's metadata stays legible, since sessions are found by it."""
    monkeypatch.setenv("PALIMPSEST_ENCRYPTION_KEY", Fernet.generate_key().decode())
    monkeypatch.setattr(service, "CACHE_SECONDS", 0.0)
    secret, _ = await tenant(database, "acme")
    async with receiving() as receiver, serving_client(database_url, secret) as http:
        receiver.statuses.extend([400] * 1_000)
        async with working(database_url):
            await walk(http, receiver)
    assert {table.split(".")[1] for table in await tables_containing(database, SECRET_WORD)} == {"sessions"}
    row = await database.fetchrow("SELECT count(*) AS n FROM summaries WHERE text <> ''")
    assert row is not None and row["n"] > 0
    await database.execute("UPDATE sessions SET metadata = '{}'")
    assert await tables_containing(database, SECRET_WORD) == set()

    async with serving_client(database_url, secret) as http:  # in a process without caches
        calls = (await http.get("/v1/audit/calls", params={"limit": 100})).json()["items"]
        assert len(calls) > 10
        for call in calls:
            again = (await http.get(f"/v1/sessions/{call['session']}/calls/{call['call_id']}/context")).json()
            assert again["sha256"] == call["sha256"] or again["redacted"], call
