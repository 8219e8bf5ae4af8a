"""Ids of sessions erased on request: later requests do not create the session again without metadata."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from app.store.engine import Database, acting_for
from app.tenants import DEFAULT_TENANT, SCOPES, Tenants
from app.wings.retention.store import TABLES
from tests.conftest import Servers, serving
from tests.contract.contexts.test_context import append, turn_of_rounds
from tests.contract.retention.test_erasures import ANN, begin_erasure, receipt, run_erasure, session, session_ids
from tests.support.gateways import settings
from tests.support.provider import Provider
from tests.support.requesting import Loopback

Json = dict[str, Any]
MESSAGES = [{"role": "user", "content": "Where were we?"}]
IMPLICIT: dict[str, tuple[str, str, Json]] = {
    "events": ("POST", "/events", {"events": [{"type": "user.message", "content": "Hello?"}]}),
    "messages": ("POST", "/messages", {"format": "openai", "messages": MESSAGES}),
    "a context of messages": ("POST", "/context", {"messages": MESSAGES}),
    "settings without metadata": ("PUT", "", {"model": "gpt-5"}),
}


async def erase_sessions(client: httpx.AsyncClient, application: Database, *names: str, **asked: Any) -> None:
    """Create Ann's sessions and erase them by their metadata."""
    for name in names:
        await session(client, name, "ann")
    begun = await begin_erasure(client, {**ANN, **asked})
    await run_erasure(application, begun)
    assert (await receipt(client, begun))["state"] == "done"


def is_refused(answer: httpx.Response) -> bool:
    return (answer.status_code, answer.json().get("type")) == (410, "/problems/session-erased")


@pytest.mark.parametrize("way", IMPLICIT)
async def test_an_erased_session_is_not_created_again_without_metadata(
    client: httpx.AsyncClient, application: Database, database: Database, way: str
) -> None:
    await erase_sessions(client, application, "s")
    method, path, body = IMPLICIT[way]
    for _ in range(2):
        answer = await client.request(method, f"/v1/sessions/s{path}", json=body)
        assert is_refused(answer), answer.text
        assert "PUT /v1/sessions/s" in answer.json()["detail"]
    assert await session_ids(client) == set()
    for table in TABLES:
        assert await database.fetch(f"SELECT FROM {table}") == [], table
    assert (await client.request(method, f"/v1/sessions/other{path}", json=body)).is_success


@pytest.mark.parametrize("missing", [("PUT", "/layers/announce", {"content": "x"}), ("POST", "/context", {})])
async def test_requests_that_create_no_session_are_404(
    client: httpx.AsyncClient, application: Database, missing: tuple[str, str, Json]
) -> None:
    await erase_sessions(client, application, "s")
    method, path, body = missing
    assert (await client.request(method, f"/v1/sessions/s{path}", json=body)).status_code == 404


async def test_a_session_created_again_with_its_metadata_is_found_by_the_next_erasure(
    client: httpx.AsyncClient, application: Database
) -> None:
    await erase_sessions(client, application, "s")
    put = await client.put("/v1/sessions/s", json={"metadata": {"user": "ann"}})
    assert put.status_code == 201, put.text
    await append(client, turn_of_rounds(1))
    begun = await begin_erasure(client, ANN)
    await run_erasure(application, begun)
    assert (await receipt(client, begun))["sessions"] == 1
    assert is_refused(await client.post("/v1/sessions/s/events", json=IMPLICIT["events"][2]))


async def test_a_fork_takes_an_erased_id_only_with_metadata(client: httpx.AsyncClient, application: Database) -> None:
    await erase_sessions(client, application, "s")
    await append(client, turn_of_rounds(1), sid="parent")
    assert is_refused(await client.post("/v1/sessions/parent/fork", json={"id": "s"}))
    assert await session_ids(client) == {"parent"}
    made = await client.post("/v1/sessions/parent/fork", json={"id": "s", "metadata": {"user": "ann"}})
    assert made.status_code == 201, made.text


async def test_ids_of_forks_erased_with_a_session_are_refused_too(
    client: httpx.AsyncClient, application: Database
) -> None:
    await session(client, "s", "ann")
    assert (await client.post("/v1/sessions/s/fork", json={"id": "f"})).status_code == 201
    await erase_sessions(client, application, forks="erase")
    for name in ("s", "f"):
        assert is_refused(await client.post(f"/v1/sessions/{name}/events", json=IMPLICIT["events"][2]))


async def test_a_deleted_session_may_be_created_again_by_any_request(
    client: httpx.AsyncClient, application: Database
) -> None:
    await append(client, turn_of_rounds(1))
    assert (await client.delete("/v1/sessions/s")).status_code == 204
    await append(client, turn_of_rounds(1))
    await erase_sessions(client, application, "s")
    assert (await client.put("/v1/sessions/s", json={"metadata": {}})).status_code == 201
    assert (await client.delete("/v1/sessions/s")).status_code == 204
    await append(client, turn_of_rounds(1))


async def test_ids_erased_by_one_tenant_are_free_for_others(
    client: httpx.AsyncClient, server: str, database: Database, application: Database
) -> None:
    await erase_sessions(client, application, "s")
    key = await Tenants(database, None).create_key("other", "k", SCOPES)
    headers = {"Authorization": f"Bearer {key.secret}"}
    async with httpx.AsyncClient(base_url=server, headers=headers) as theirs:
        assert (await theirs.post("/v1/sessions/s/events", json=IMPLICIT["events"][2])).status_code == 201
    other = (await database.fetchrow("SELECT tenant_id FROM tenants WHERE name = 'other'") or {})["tenant_id"]
    for tenant, rows in ((DEFAULT_TENANT, 1), (other, 0)):
        with acting_for(tenant):
            assert len(await application.fetch("SELECT FROM erased_names")) == rows


async def test_appends_during_an_erasure_do_not_create_the_session_again(
    servers: Servers, application: Database
) -> None:
    await session(servers[0], "s", "ann")
    begun = await begin_erasure(servers[0], ANN)
    gone = asyncio.Event()

    async def living(client: httpx.AsyncClient) -> httpx.Response:
        while True:
            over = gone.is_set()
            answer = await client.post("/v1/sessions/s/events", json=IMPLICIT["events"][2])
            if answer.status_code != 201 or over:
                return answer

    async def erasing() -> None:
        await run_erasure(application, begun)
        gone.set()

    *answers, _ = await asyncio.gather(*(living(server) for server in servers * 3), erasing())
    assert all(is_refused(answer) for answer in answers), [answer.text for answer in answers]
    assert await session_ids(servers[0]) == set()


@pytest.mark.wing("gateway")
async def test_the_gateway_bypasses_an_erased_session_and_logs_it_once(
    database_url: str, application: Database, provider: Provider
) -> None:
    raw = json.dumps({"model": "m", "messages": MESSAGES}).encode()
    path = "/gateway/s/s/openai/v1/chat/completions"
    async with (
        serving(settings(provider), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30, transport=Loopback()) as http,
    ):
        await erase_sessions(http, application, "s")
        with capture_logs() as lines:
            for _ in range(3):
                answer = await http.post(path, content=raw)
                assert (answer.status_code, provider.requests[-1].raw) == (200, raw)
                assert answer.headers["x-palimpsest-mode"] == "bypass"
                assert answer.headers["x-palimpsest-reason"] == "session-erased"
        assert [line["reason"] for line in lines if line["event"] == "bypass"] == ["session-erased"]
        assert await session_ids(http) == set()
        await http.put("/v1/sessions/s", json={"metadata": {"user": "ann"}})
        assert (await http.post(path, content=raw)).headers["x-palimpsest-mode"] == "context"
