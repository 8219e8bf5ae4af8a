"""Layers over HTTP: content shown after the conversation while an agent works."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from app.resources.layers import service
from app.store.engine import Database
from app.store.ids import first_id, session_key
from app.tenants import DEFAULT_TENANT
from tests.conformance.agent import Agent, Json, request_text
from tests.conftest import Servers

LAYERS = "/v1/sessions/s/layers"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
FORMATS = ("openai", "openai-responses", "anthropic", "gemini", "blocks")
TEXT = "word " * 80


async def put(client: httpx.AsyncClient, kind: str, content: Any) -> Json:
    answer = await client.put(f"{LAYERS}/{kind}", json={"content": content})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def test_a_layer_is_replaced_whole_and_deleted(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.user("QUESTION")
    first = await put(client, "sources", "A")
    assert (first["kind"], first["version"], first["content"], first["turn"]) == ("sources", 1, "A", None)
    assert (await put(client, "sources", "A"))["version"] == 1  # unchanged content is no new version
    assert (await put(client, "announce", "N"))["version"] == 2
    assert (await put(client, "sources", "B"))["version"] == 3
    current = (await client.get(LAYERS)).json()
    assert (current["sources"]["content"], current["announce"]["content"]) == ("B", "N")
    for _ in range(2):
        assert (await client.delete(f"{LAYERS}/sources")).status_code == 204
    assert (await client.get(LAYERS)).json()["sources"] is None
    assert request_text(await agent.context()).count("<sources>") == 0


@pytest.mark.parametrize(
    "content", ["", " \n", [], [{"type": "text", "text": " "}], 7, None, [7], "a\x00b", "\ud800", [{"type": "text"}]]
)
async def test_invalid_content_is_refused(client: httpx.AsyncClient, content: Any) -> None:
    await Agent(client).user()
    body = json.dumps({"content": content})
    answer = await client.put(f"{LAYERS}/sources", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request"), answer.text
    assert (await client.get(LAYERS)).json()["sources"] is None


async def test_unknown_layers_and_sessions_are_refused(client: httpx.AsyncClient) -> None:
    assert (await client.put(f"{LAYERS}/sources", json={"content": "x"})).status_code == 404
    assert (await client.delete(f"{LAYERS}/sources")).status_code == 404
    assert (await client.get(LAYERS)).status_code == 404
    await Agent(client).user()
    assert (await client.put(f"{LAYERS}/plan", json={"content": "x"})).status_code == 422
    assert (await client.put(f"{LAYERS}/sources", json={"content": "x", "turn": 1})).status_code == 422


@pytest.mark.parametrize("form", FORMATS)
async def test_layers_follow_the_conversation_and_precede_injections(client: httpx.AsyncClient, form: str) -> None:
    agent = await Agent.begin(client, {"injection_reserve_tokens": 500}, format=form)
    await agent.assistant("earlier")
    await agent.user("QUESTION")
    await put(client, "announce", "ANNOUNCED")
    await put(
        client, "sources", [{"type": "text", "text": "SOURCED"}, {"type": "image", "data": PNG, "mime": "image/png"}]
    )
    context = await agent.context(injections=[{"name": "hook", "content": "INJECTED"}])
    seen = request_text(context)
    order = [seen.index(text) for text in ("earlier", "QUESTION", "SOURCED", PNG[:20], "ANNOUNCED", "INJECTED")]
    assert order == sorted(order)
    assert context["tokens"]["by_source"]["ephemeral"] > 0
    assert sum(context["tokens"]["by_source"].values()) == context["tokens"]["estimate"]


@pytest.mark.parametrize("form", FORMATS)
async def test_a_changed_layer_leaves_the_prefix_unchanged(client: httpx.AsyncClient, form: str) -> None:
    agent = Agent(client, format=form, model="claude-sonnet-4-5")
    await agent.post({"type": "system.prompt", "content": "rule " * 6_000})
    await agent.user("QUESTION")
    without = await agent.context()
    seen = []
    for content in ("one", "two", "three " * 50):
        await put(client, "sources", content)
        seen.append(await agent.context())
    for context in seen:
        assert context["cache"]["prefix_sha256"] == seen[0]["cache"]["prefix_sha256"]
        assert context["cache"]["breakpoints"] == without["cache"]["breakpoints"]
        assert context["cache"]["prefix_tokens"] == without["cache"]["prefix_tokens"]
        assert context["epoch"] == without["epoch"]
    assert len({context["sha256"] for context in seen}) == 3
    if form == "anthropic":
        parts = seen[-1]["request"]["messages"][-1]["content"]
        assert [("cache_control" in part) for part in parts] == [True, False]
        assert "three" in parts[1]["text"]


async def test_layers_count_towards_the_target(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, {"reserve_tokens": 0, "evict": "on_pressure"}, max_tokens=4_000)
    for number in range(15):
        await agent.user(f"turn-{number}. {TEXT}")
    whole = await agent.context()
    room = whole["tokens"]["target"] - whole["tokens"]["estimate"]
    assert not whole["evictions"]
    await put(client, "sources", "source " * (room // 2 + 400))
    reduced = await agent.context()
    assert reduced["evictions"]
    assert reduced["tokens"]["estimate"] <= reduced["tokens"]["target"]
    await put(client, "sources", "source " * 6_000)
    problem = await agent.context(422)
    assert problem["type"] == "/problems/context-infeasible"
    assert problem["by_source"]["ephemeral"] > problem["target"]
    await client.delete(f"{LAYERS}/sources")
    assert (await agent.context())["tokens"]["by_source"]["ephemeral"] == whole["tokens"]["by_source"]["ephemeral"]


async def test_a_policy_may_leave_layers_out(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.user()
    await put(client, "sources", "SOURCED")
    await put(client, "announce", "ANNOUNCED")
    seen = request_text(await agent.context(view="title", policy={"layers": ["announce"]}))
    assert ("SOURCED" in seen, "ANNOUNCED" in seen) == (False, True)
    assert "SOURCED" in request_text(await agent.context())
    problem = await agent.context(422, policy={"layers": ["plan"]})
    assert (problem["type"], problem["knob"]) == ("/problems/invalid-policy", "layers")


async def test_a_context_as_of_an_earlier_seq_has_no_layers(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.user("one")
    await put(client, "sources", "SOURCED")
    await agent.user("two")
    assert "SOURCED" not in request_text(await agent.context(at=1))
    assert "SOURCED" in request_text(await agent.context(at=2))


async def test_layers_outside_an_explicit_turn_stay_until_replaced(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.user("one")
    await put(client, "sources", "SOURCED")
    await agent.user("two")
    assert "SOURCED" in request_text(await agent.context())
    await agent.post({"type": "turn.start"}, {"type": "user.message", "content": "three"})
    assert "SOURCED" in request_text(await agent.context())


@pytest.mark.wing("audit")
async def test_a_call_is_rendered_again_with_the_layers_it_showed(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, {"injection_reserve_tokens": 2_000})
    await agent.user("QUESTION")
    sent = []
    for number in range(4):
        await put(client, "sources", f"source {number}")
        await put(client, "announce", [{"type": "text", "text": f"announce {number}"}])
        for form in FORMATS:
            parts = [{"type": "text", "text": "INJECTED"}, {"type": "image", "data": PNG, "mime": "image/png"}]
            sent.append(await agent.context(format=form, injections=[{"name": "hook", "content": parts}]))
    await client.delete(f"{LAYERS}/sources")
    for context in sent:
        again = (await client.get(f"/v1/sessions/s/calls/{context['call_id']}/context")).json()
        assert (again["reproduced"], again["request"]) == (True, context["request"])
    manifest = (await client.get(f"/v1/sessions/s/calls/{sent[-1]['call_id']}")).json()
    assert manifest["layers"] == {"sources": 7, "announce": 8}


async def test_a_context_with_layers_does_not_reload_its_cached_view(
    client: httpx.AsyncClient, reads: list[str]
) -> None:
    agent = Agent(client)
    await agent.user()
    await agent.context()
    reads.clear()
    for number in range(3):
        await put(client, "sources", f"source {number}")
        assert f"source {number}" in request_text(await agent.context())
        await agent.assistant()
        assert f"source {number}" in request_text(await agent.context())
    await client.post("/v1/sessions/s/turns/end", json={})
    assert "source" not in request_text(await agent.context())
    assert reads == []


@pytest.mark.parametrize("content", ["the secret", [{"type": "text", "text": "the secret, in parts"}]])
async def test_a_redacted_announcement_is_removed_from_its_layer(
    client: httpx.AsyncClient, database: Database, content: Any
) -> None:
    agent = Agent(client)
    await agent.user()
    await put(client, "announce", "said before")
    await put(client, "announce", content)
    await agent.context()
    ended = (await client.post("/v1/sessions/s/turns/end", json={})).json()
    seq = ended["events"][0]["seq"]
    await put(client, "announce", content)  # the next turn announces it again
    assert (await client.delete(f"/v1/sessions/s/events/{seq}")).status_code == 204
    assert (await client.get(LAYERS)).json()["announce"] is None
    assert "secret" not in request_text(await agent.context())
    left = await database.fetch("SELECT content::text FROM layers WHERE content IS NOT NULL")
    assert [row["content"] for row in left] == ['"said before"']


async def test_layers_put_on_one_server_are_shown_by_another(servers: Servers) -> None:
    agents = [Agent(server) for server in servers]
    await agents[0].user()
    for agent in agents:
        await agent.context()
    for number in range(6):
        await put(servers[number % 2], "sources", f"source {number}.")
        assert [f"source {number}." in request_text(await agent.context()) for agent in agents] == [True, True]
    await servers[0].delete(f"{LAYERS}/sources")
    assert ["source" in request_text(await agent.context()) for agent in agents] == [False, False]


async def test_the_last_version_put_is_shown(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.user()
    await agent.context()
    await asyncio.gather(*(put(client, "sources", f"source {number}.") for number in range(20)))
    current = (await client.get(LAYERS)).json()["sources"]
    assert current["version"] == 20
    assert current["content"] in request_text(await agent.context())


@pytest.mark.wing("audit")
async def test_versions_that_no_call_shows_are_deleted(client: httpx.AsyncClient, database: Database) -> None:
    agent = Agent(client)
    await agent.user()
    await put(client, "sources", "never seen")
    await put(client, "sources", "seen")
    call = (await agent.context())["call_id"]
    await put(client, "sources", "never seen either")
    await put(client, "sources", "stands")
    assert await service.sweep(database) == 0  # a context that shows them may be in progress
    made = _call_id(4.5)
    await _backdate(database, {1: 9, 2: 6, 3: 3, 4: 1.5}, call, made)
    assert await service.sweep(database) == 2
    versions = [row["version"] for row in await database.fetch("SELECT version FROM layers ORDER BY version")]
    assert versions == [2, 4]
    again = (await client.get(f"/v1/sessions/s/calls/{made}/context")).json()
    assert again["reproduced"] is True
    assert "seen" in request_text(again)


def _call_id(hours: float) -> str:
    """Return the id of a call made `hours` ago."""
    return str(first_id(datetime.now(UTC) - timedelta(hours=hours) + timedelta(hours=1)))


async def _backdate(database: Database, ages: dict[int, float], call: str, made: str) -> None:
    """Backdate layer versions by the given hours, and give a call the id `made`."""
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        for version, hours in ages.items():
            await tx.execute(
                "UPDATE layers SET created_at = now() - make_interval(secs => :seconds) "
                "WHERE session_id = :session_id AND version = :version",
                session_id=session_key(DEFAULT_TENANT, "s"),
                version=version,
                seconds=hours * 3600,
            )
        await tx.execute("UPDATE model_calls SET call_id = :new WHERE call_id = :old", old=UUID(call), new=UUID(made))


@pytest.mark.wing("audit")
async def test_a_missing_version_is_an_error(client: httpx.AsyncClient, database: Database) -> None:
    agent = Agent(client)
    await agent.user()
    await put(client, "sources", "seen")
    call = (await agent.context())["call_id"]
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        await tx.execute("DELETE FROM layers")
    answer = await client.get(f"/v1/sessions/s/calls/{call}/context")
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/not-reproducible")
