"""Reads that a replica may answer, without a usable replica; tests/acceptance/test_replica.py has a real one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from app.runtime.settings import InvalidSetting, Settings, load
from app.store.dsn import for_asyncpg, normalize
from app.wings.replica import service
from tests.conftest import serving
from tests.support.clusters import free_port
from tests.support.requesting import Loopback

DOCUMENT = Path(__file__).parents[3] / "openapi" / "palimpsest.json"
REPLICA_READS = {
    *("audit_calls", "get_audit_ledger", "get_ledger", "list_calls", "get_event_history"),
    *("get_call", "get_call_context", "list_call_blocks", "get_call_block", "diff_calls"),
}


@asynccontextmanager
async def server(database_url: str, read_url: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    settings["read_database_url"] = normalize(read_url)
    async with (
        serving(Settings(**settings), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=60, transport=Loopback()) as http,
    ):
        yield http


def unused_url() -> str:
    """Return the URL of an address where nothing listens."""
    return f"postgresql://nobody@127.0.0.1:{free_port()}/palimpsest"


async def begin_session(http: httpx.AsyncClient) -> str:
    """Create a session with a call; return the call's id."""
    said = {"events": [{"type": "user.message", "content": "hello"}]}
    assert (await http.post("/v1/sessions/s/events", json=said)).status_code == 201
    return str((await http.post("/v1/sessions/s/context", json={"format": "openai"})).json()["call_id"])


async def wait_for_replica_state(http: httpx.AsyncClient, state: str) -> None:
    async with asyncio.timeout(60):
        while (await http.get("/readyz")).json() != {"status": "ready", "replica": state}:
            pass


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
@pytest.mark.wing("ledger")
async def test_the_primary_answers_while_the_replica_is_away(database_url: str) -> None:
    async with server(database_url, unused_url()) as http:
        call = await begin_session(http)
        for path in ("calls", f"calls/{call}", f"calls/{call}/context", "ledger", "events/1/history"):
            answer = await http.get(f"/v1/sessions/s/{path}")
            assert (answer.status_code, answer.headers.get("age")) == (200, None), path
        await wait_for_replica_state(http, "away")
        assert (await http.get("/v1/audit/calls")).json()["items"][0]["call_id"] == call


@pytest.mark.wing("audit")
async def test_a_database_that_is_no_standby_is_not_read(database_url: str) -> None:
    async with server(database_url, database_url) as http:
        await wait_for_replica_state(http, "other")
        await begin_session(http)
        answer = await http.get("/v1/sessions/s/calls")
        assert (len(answer.json()["items"]), answer.headers.get("age")) == (1, None)


@pytest.mark.wing("audit")
async def test_many_audits_leave_connections_to_agents(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WAIT_SECONDS", 0.05)
    owner = await asyncpg.connect(for_asyncpg(database_url))
    try:
        async with server(database_url, unused_url(), pool_size=4) as http:
            await begin_session(http)
            lock = owner.transaction()
            await lock.start()
            await owner.execute("LOCK TABLE model_calls IN ACCESS EXCLUSIVE MODE")  # delays the audits
            audits = [asyncio.create_task(http.get("/v1/audit/calls")) for _ in range(8)]
            await asyncio.wait(audits, return_when=asyncio.FIRST_COMPLETED)  # one is refused, not yet all
            said = {"events": [{"type": "user.message", "content": "and agents go on"}]}
            assert (await http.post("/v1/sessions/s/events", json=said)).status_code == 201
            await lock.rollback()
            answers = await asyncio.gather(*audits)
        refused = [answer for answer in answers if answer.status_code != 200]
        assert 0 < len(refused) < len(answers)
        for answer in refused:
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/store-unavailable")
            assert int(answer.headers["retry-after"]) >= 1
    finally:
        await owner.close()


@pytest.mark.wing("audit")
@pytest.mark.wing("ledger")
def test_the_document_names_the_operations_that_may_be_late() -> None:
    document = json.loads(DOCUMENT.read_text())
    operations = [one for path in document["paths"].values() for one in path.values()]
    documented = {one["operationId"] for one in operations if "`Cache-Control: no-cache`" in one.get("description", "")}
    assert documented == REPLICA_READS
    for one in operations:
        asks = any(given["name"] == "Cache-Control" for given in one.get("parameters", ()))
        says = "Age" in one["responses"].get("200", {}).get("headers", {})
        assert asks == says == (one["operationId"] in REPLICA_READS)


def test_the_password_can_be_given_separately_from_the_address() -> None:
    settings = Settings.model_validate({"database_password": "a@/%:+b", "read_database_url": "postgresql://u@h/d"})
    assert settings.model_dump()["read_database_url"] == "postgresql+asyncpg://u:a%40%2F%25%3A+b@h/d"


def test_a_replica_is_one_host() -> None:
    with pytest.raises(InvalidSetting, match="PALIMPSEST_READ_DATABASE_URL lists several hosts"):
        load(read_database_url="postgresql://u@h1,h2/d")
