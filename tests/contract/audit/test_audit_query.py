"""The audit query over HTTP."""

from typing import Any
from uuid import UUID

import httpx
import pytest

from app.store.engine import Database
from app.tenants import Tenants
from app.wings.audit import search as calls_search
from tests.contract.audit.test_audit import Agent, Json


@pytest.fixture
def agent(client: httpx.AsyncClient) -> Agent:
    return Agent(client)


async def search(client: httpx.AsyncClient, **params: Any) -> list[Json]:
    """Return all pages of an audit query."""
    items: list[Json] = []
    while True:
        answer = await client.get("/v1/audit/calls", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        params["cursor"] = page["next_cursor"]


@pytest.mark.wing("compare")
async def test_the_audit_query_filters_across_sessions(client: httpx.AsyncClient, database: Database) -> None:
    agents = [Agent(client, name) for name in ("s", "t")]
    sent: list[Json] = []
    for turn in range(7):
        for agent in agents:
            await agent.turn()
            sent.append(await agent.context(model=("gpt-4o", "claude-x")[turn % 2]))
    ids = [call["call_id"] for call in sent]
    await database.execute(
        "UPDATE model_calls SET overflow = true, reported_at = now() WHERE call_id = :id", id=UUID(ids[2])
    )

    async def found(**params: Any) -> list[str]:
        return [row["call_id"] for row in await search(client, **params)]

    assert await found() == await found(limit=3) == ids[::-1]
    assert await found(session="t") == ids[::-2]
    assert await found(model="gpt-4o") == [i for i, c in zip(ids, sent, strict=True) if c["model"] == "gpt-4o"][::-1]
    assert await found(overflow=True) == [ids[2]]
    assert await found(overflow=False, session="s") == [*ids[12:2:-2], ids[0]]
    evicted = {i: sum(row["tokens_saved"] for row in c["evictions"]) for i, c in zip(ids, sent, strict=True)}
    some = sorted({n for n in evicted.values() if n})
    assert len(some) >= 2
    for least in (1, some[0], some[0] + 1, some[-1], some[-1] + 1):
        assert await found(min_evicted_tokens=least) == [i for i in ids[::-1] if evicted[i] >= least]
    for seq in (1, 3, 7):
        history = (await agents[0].get(f"/events/{seq}/history"))["items"]
        gone = [item["call_id"] for item in history if item["disposition"] != "verbatim"]
        assert await found(session="s", evicted_seq=seq) == gone[::-1]
    assert gone
    rows = await search(client)
    middle = rows[-5]["created_at"]
    assert await found(since=middle) == ids[:3:-1]
    assert await found(until=middle) == ids[3::-1]
    assert (
        await found(since=middle, session="s", model="gpt-4o")
        == [
            i
            for i, c in zip(ids, sent, strict=True)
            if ids.index(i) >= 4 and c["session"] == "s" and c["model"] == "gpt-4o"
        ][::-1]
    )
    assert await found(until="2020-01-01T00:00:00Z") == await found(session="t", until="2020-01-01T00:00:00Z") == []
    row = rows[0]
    assert (row["session"], row["estimate"], row["sha256"]) == ("t", sent[-1]["tokens"]["estimate"], sent[-1]["sha256"])


async def test_a_page_that_reached_the_scan_limit_has_a_cursor(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    await agent.turn()
    ids = [(await agent.context(model="rare" if number == 0 else "usual"))["call_id"] for number in range(9)]
    monkeypatch.setattr(calls_search, "SCAN_MAX", 3)
    params: Json = {"overflow": "false", "session": "s", "model": "rare"}
    pages = []
    while not pages or params["cursor"] is not None:
        page = (await agent.client.get("/v1/audit/calls", params=params)).json()
        pages.append([row["call_id"] for row in page["items"]])
        params["cursor"] = page["next_cursor"]
    assert pages == [[], [], [ids[0]], []]


async def test_invalid_queries_are_refused(client: httpx.AsyncClient) -> None:
    for query in (
        "evicted_seq=3",
        "session=a%20b",
        "min_evicted_tokens=-1",
        "since=yesterday",
        "summary=x",
        "cursor=x",
    ):
        answer = await client.get(f"/v1/audit/calls?{query}")
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request"), query


@pytest.mark.wing("compare")
async def test_the_audit_needs_its_scope_and_stays_within_the_tenant(
    client: httpx.AsyncClient, database: Database
) -> None:
    tenants = Tenants(database, None)
    keys = {
        name: (await tenants.create_key(tenant, name, scopes)).secret
        for name, tenant, scopes in (
            ("ours", "default", ["admin"]),
            ("reader", "default", ["read"]),
            ("auditor", "default", ["audit"]),
            ("theirs", "other", ["admin"]),
        )
    }
    client.headers["Authorization"] = f"Bearer {keys['ours']}"
    agent = Agent(client)
    await agent.turn()
    sent = await agent.context()

    def asks(name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {keys[name]}"}

    assert (await client.get("/v1/audit/calls", headers=asks("reader"))).status_code == 403
    assert len((await client.get("/v1/audit/calls", headers=asks("auditor"))).json()["items"]) == 1
    for query in ("", "?session=s", "?min_evicted_tokens=1", "?model=x", "?session=s&evicted_seq=3"):
        assert (await client.get(f"/v1/audit/calls{query}", headers=asks("theirs"))).json()["items"] == []
    for path in ("/calls", f"/calls/{sent['call_id']}", f"/calls/{sent['call_id']}/context", "/events/1/history"):
        assert (await client.get(f"/v1/sessions/s{path}", headers=asks("theirs"))).status_code == 404
