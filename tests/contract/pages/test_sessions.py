"""The list of sessions: search, filters, order, the newest calls, and the relations of sessions."""

import html
import re

import httpx
import pytest

from app.store.engine import Database
from app.wings.pages import sessions
from tests.contract.pages.test_access import new_key

EVENT = {"events": [{"type": "user.message", "content": "hi"}]}


async def append(client: httpx.AsyncClient, *names: str, **headers: str) -> None:
    """Append one event to each session."""
    for name in names:
        answer = await client.post(f"/v1/sessions/{name}/events", json=EVENT, headers=headers)
        assert answer.status_code == 201, answer.text


async def shown(client: httpx.AsyncClient, query: str = "", **headers: str) -> list[str]:
    """Return the names of the sessions in the list, in its order."""
    page = await client.get(f"/ui/{query}", headers=headers)
    assert page.status_code == 200, page.text
    return re.findall(r'<th scope="row"><a class="name" href="/ui/sessions/([^"]+)"', page.text)


async def test_an_empty_server_says_how_to_get_a_session(client: httpx.AsyncClient) -> None:
    page = html.unescape((await client.get("/ui/")).text)
    commands = re.findall(r"<dt><code>(.*?)</code>", page)
    assert [command.split()[0].partition("=")[0] for command in commands] == [
        "palimpsest",
        "curl",
        "ANTHROPIC_BASE_URL",
    ]
    body = re.search(r"-d '(\{.*\})'", commands[1])
    assert body is not None
    answer = await client.post(
        "/v1/sessions/demo/messages", content=body[1], headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 201
    assert await shown(client) == ["demo"]
    assert "No such session" in (await client.get("/ui/?find=nothing")).text


async def test_a_search_finds_a_part_of_the_id_whatever_its_case(client: httpx.AsyncClient) -> None:
    await append(client, "team-a:1", "team-b:1", "Team-A:2")
    assert await shown(client, "?find=TEAM-a") == ["Team-A:2", "team-a:1"]
    assert await shown(client, "?find=%25") == [] == await shown(client, "?find=_")
    page = (await client.get("/ui/?find=%22%3E%3Cscript%3E")).text
    assert "<script>" not in page and "&lt;script&gt;" in page


async def test_filters_and_order(client: httpx.AsyncClient, database: Database) -> None:
    await append(client, "old", "new")
    await client.put("/v1/sessions/new", json={"model": "gpt-4o"})
    assert await shown(client) == ["new", "old"]
    await append(client, "old")
    assert await shown(client, "?order=changed") == ["old", "new"]
    assert await shown(client, "?model=gpt-4o") == ["new"]
    await database.execute("UPDATE sessions SET updated_at = now() - interval '3 hours' WHERE external_id = 'old'")
    assert await shown(client, "?since=hour") == ["new"] and len(await shown(client, "?since=day")) == 2


async def test_failed_calls_are_counted_and_found(client: httpx.AsyncClient) -> None:
    await append(client, "fine", "failing")
    for name, outcome in (
        ("fine", {"usage": {"input_tokens": 10, "output_tokens": 1}}),
        ("failing", {"error": {"status": 500, "message": "no"}}),
    ):
        for _ in range(2):
            call = (await client.get(f"/v1/sessions/{name}/context?max_tokens=24000")).json()
            await client.post(f"/v1/sessions/{name}/calls/{call['call_id']}/outcome", json=outcome)
    assert await shown(client, "?troubled=1") == ["failing"]
    page = (await client.get("/ui/")).text
    assert page.count('<polyline class="spark"') == 2 and "2 failed of the last 2" in page


async def test_lines_count_as_one_session_with_the_figures_of_the_current_one(
    client: httpx.AsyncClient,
) -> None:
    for first in ("hello", "another beginning"):
        messages = [{"role": "user", "content": first}, {"role": "assistant", "content": "yes"}]
        answer = await client.post("/v1/sessions/s/context", json={"format": "openai", "messages": messages})
        assert answer.status_code == 200, answer.text
    for query in ("", "?order=changed", "?find=s"):
        assert await shown(client, query) == ["s"]
    assert "line 2" in (await client.get("/ui/")).text


async def test_forks_and_sub_agents_name_their_parents(client: httpx.AsyncClient) -> None:
    await append(client, "main", "main:helper", "stranger:helper")
    await client.post("/v1/sessions/main/fork", json={"at": 1, "id": "branch"})
    page = " ".join(re.sub(r"<[^>]+>", "", (await client.get("/ui/")).text).split())
    assert "branch fork of main at event 1" in page and "main:helper sub-agent of main" in page
    assert "sub-agent of stranger" not in page


async def test_pages_follow_each_other_without_a_gap(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PAGE", 2)
    await append(client, "a", "b", "c", "d", "e")
    page = (await client.get("/ui/")).text
    names = await shown(client)
    while following := re.search(r'rel="next" href="/ui/(\?[^"]+)"', page):
        query = html.unescape(following[1])
        names += await shown(client, query)
        page = (await client.get(f"/ui/{query}")).text
    assert names == ["e", "d", "c", "b", "a"]


async def test_every_search_stays_within_the_tenant_and_the_prefix(
    client: httpx.AsyncClient, database: Database
) -> None:
    ours, theirs = await new_key(database, "admin"), await new_key(database, "admin", tenant="other")
    bound = await new_key(database, "read", prefix="a:")
    await append(client, "a:1", "b:1", "a", Authorization=f"Bearer {ours}")
    await client.post(
        "/v1/sessions/b:1/fork", json={"at": 1, "id": "a:fork"}, headers={"Authorization": f"Bearer {ours}"}
    )
    await append(client, "a:2", Authorization=f"Bearer {theirs}")
    for query in ("", "?find=1", "?order=changed", "?since=day"):
        assert await shown(client, query, Authorization=f"Bearer {theirs}") == ([] if query == "?find=1" else ["a:2"])
        seen = await shown(client, query, Authorization=f"Bearer {bound}")
        assert {*seen} == ({"a:1"} if query == "?find=1" else {"a:1", "a:fork"}), query
    page = (await client.get("/ui/", headers={"Authorization": f"Bearer {bound}"})).text
    assert "b:1" not in page and "sub-agent" not in page


async def test_observed_calls_are_not_among_the_sent_ones(client: httpx.AsyncClient) -> None:
    await append(client, "watched")
    for asked in ({}, {"view": "observed"}, *([{"observe": True}] * 3)):
        made = await client.post("/v1/sessions/watched/context", json={"max_tokens": 24000, **asked})
        assert made.status_code == 200, made.text
    assert "last 2 calls" in (await client.get("/ui/")).text
