"""Policies over HTTP: immutable versions by name, presets, and their use by sessions and single requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest

from app.core.policy.policy import DOCUMENTS
from app.runtime.settings import Settings
from app.store.engine import Database
from app.tenants import Tenants
from tests.conftest import serving

CAREFUL = {"retention": {"never_evict": ["plan"], "keep_last": 3}, "low_water": 0.5}
SMALL: dict[str, Any] = {"window_tokens": 4_000, "reserve_tokens": 500}
PRESETS = list(DOCUMENTS)


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a second server on the same database."""
    async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
        yield http


async def put(client: httpx.AsyncClient, name: str, document: Any, status: int = 201) -> dict[str, Any]:
    answer = await client.put(f"/v1/policies/{name}", json=document)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def get(client: httpx.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    answer = await client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def list_policies(client: httpx.AsyncClient, limit: int = 50) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await get(client, "/v1/policies", limit=limit, **({"cursor": cursor} if cursor else {}))
        assert len(page["items"]) <= limit
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items


async def talk(client: httpx.AsyncClient, sid: str = "s", rounds: int = 12) -> None:
    """Append to a session tool results that take far more than SMALL allows."""
    events: list[dict[str, Any]] = [{"type": "user.message", "content": "Read them all."}]
    for number in range(rounds):
        events += [
            {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": {"path": f"/f{number}"}},
            {"type": "tool.result", "call_id": f"c{number}", "content": f"file {number}\n" + "word " * 500},
        ]
    events.append({"type": "assistant.message", "content": "Done."})
    events.append({"type": "user.message", "content": "And now?"})
    answer = await client.post(f"/v1/sessions/{sid}/events", json={"events": events})
    assert answer.status_code == 201, answer.text


async def set_policy(client: httpx.AsyncClient, policy: Any, sid: str = "s") -> dict[str, Any]:
    answer = await client.put(f"/v1/sessions/{sid}", json={"policy": policy})
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_changed_document_is_a_new_version(client: httpx.AsyncClient) -> None:
    first = await put(client, "mine", CAREFUL)
    assert set(first) == {"name", "version", "preset", "policy", "created_at"}
    assert (first["name"], first["version"], first["preset"]) == ("mine", 1, False)
    assert list(first["policy"]) == list(CAREFUL)
    assert first["policy"] == CAREFUL
    assert (await put(client, "mine", dict(reversed(CAREFUL.items())), status=200)) == first
    assert (await put(client, "mine", {}))["version"] == 2
    assert (await put(client, "mine", CAREFUL))["version"] == 3
    assert (await put(client, "yours", {}))["version"] == 1

    assert (await get(client, "/v1/policies/mine"))["version"] == 3
    assert await get(client, "/v1/policies/mine", version=1) == first
    assert (await get(client, "/v1/policies/mine", version=2))["policy"] == {}


async def test_twenty_concurrent_puts_get_twenty_versions(client: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
    documents = [{"window_tokens": 10_000 + number} for number in range(20)]
    made = await asyncio.gather(*(put((client, other)[i % 2], "busy", d) for i, d in enumerate(documents)))
    assert sorted(row["version"] for row in made) == list(range(1, 21))
    assert {json.dumps(row["policy"]) for row in made} == {json.dumps(d) for d in documents}

    same = await asyncio.gather(*(client.put("/v1/policies/calm", json=CAREFUL) for _ in range(20)))
    assert sorted(answer.status_code for answer in same) == [200] * 19 + [201]
    assert {answer.json()["version"] for answer in same} == {1}


async def test_presets_are_listed_first_then_own_policies_by_name(client: httpx.AsyncClient) -> None:
    await set_policy(client, {"low_water": 0.6})
    for number, name in enumerate(("b", "a", "Z", "a.b", "a")):
        await put(client, name, {"window_tokens": 1_000 + number})
    for limit in (1, 2, 5, 6, 50):
        items = await list_policies(client, limit)
        assert [item["name"] for item in items] == [*PRESETS, "Z", "a", "a.b", "b"], limit
    assert [item["preset"] for item in items] == [True] * len(PRESETS) + [False] * 4
    assert [item["policy"] for item in items[: len(PRESETS)]] == list(DOCUMENTS.values())
    assert {item["created_at"] for item in items[: len(PRESETS)]} == {None}
    assert next(item for item in items if item["name"] == "a")["version"] == 2


async def test_a_made_up_cursor_is_refused(client: httpx.AsyncClient) -> None:
    for cursor in ("nonsense", "NQ", "eyJhIjogMX0", "ImEgYiI"):
        answer = await client.get("/v1/policies", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request"), cursor


@pytest.mark.parametrize("name", PRESETS)
async def test_a_preset_can_be_read_but_not_replaced(client: httpx.AsyncClient, name: str) -> None:
    found = await get(client, f"/v1/policies/{name}", version=1)
    assert found == {
        "name": name,
        "version": 1,
        "preset": True,
        "policy": DOCUMENTS[name],
        "created_at": None,
    }
    assert (await client.get(f"/v1/policies/{name}", params={"version": 2})).status_code == 404
    answer = await client.put(f"/v1/policies/{name}", json={})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
    assert answer.json()["field"] == "name"


@pytest.mark.parametrize("name", ["inline:mine", "a b", "a@1", "x" * 65, "a%00", "%C3%A4"])
async def test_an_invalid_name_is_refused(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.put(f"/v1/policies/{name}", json={})
    assert (answer.status_code, answer.json()["type"], answer.json()["field"]) == (
        422,
        "/problems/invalid-request",
        "name",
    )


async def test_unknown_policies_and_versions_are_problems(client: httpx.AsyncClient) -> None:
    await put(client, "mine", {})
    for path in ("/v1/policies/none", "/v1/policies/mine?version=2", "/v1/policies/inline:0123"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found"), path
    for path in ("/v1/policies/mine?version=0", "/v1/policies/mine?version=x", "/v1/policies/mine?version=4294967296"):
        assert (await client.get(path)).json()["type"] == "/problems/invalid-request", path
    for policy in ("none", "mine@2", "mine@0", "mine@", "mine@1@1", "default@2", "a\x00", "", "mine@9999999999"):
        answer = await client.put("/v1/sessions/s", json={"policy": policy})
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found"), policy
    assert (await client.get("/v1/sessions")).json()["items"] == []


@pytest.mark.parametrize(
    ("document", "knob"),
    [
        ([], "policy"),
        (None, "policy"),
        ({"colour": "red"}, "colour"),
        ({"window_tokens": 1_000, "reserve_tokens": 1_000}, "reserve_tokens"),
        ({"window_tokens": 1_000, "injection_reserve_tokens": 950}, "reserve_tokens"),
        ({"window_tokens": 1_000, "trigger": {"reserve": 1_000}}, "trigger.reserve"),
        ({"window_tokens": 1_000, "cut": {"keep_tokens": 1_001}}, "cut.keep_tokens"),
        ({"trigger": {"ratio": 0.5}, "cut": {"keep_ratio": 0.6}}, "cut.keep_ratio"),
        ({"cut": {"keep_turns": 1, "keep_messages": 1}}, "cut.keep_turns"),
        ({"estimator": "guess"}, "estimator"),
        ({"low_water": float("nan")}, "low_water"),
        ({"retention": {"never_evict": ["\ud800"]}}, "policy"),
        ({"retention": {"tools": {"\ud800": {"keep": 1}}}}, "policy"),
        ({"authors": ["x" * 65_536]}, "policy"),
    ],
)
async def test_an_invalid_policy_is_refused_with_its_knob(
    refusing: httpx.AsyncClient, document: Any, knob: str
) -> None:
    text = json.dumps(document)
    answer = await refusing.put("/v1/policies/mine", content=text, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["type"], answer.json()["knob"]) == (
        422,
        "/problems/invalid-policy",
        knob,
    )
    assert (await refusing.get("/v1/policies/mine")).status_code == 404


@pytest.mark.parametrize(
    ("policy", "status", "kind"),
    [
        ({"retention": {"never_evict": ["\ud800"]}}, 422, "/problems/invalid-policy"),
        ({"retention": {"tools": {"\ud800": {"keep": 1}}}}, 422, "/problems/invalid-policy"),
        ({"window_tokens": 1_000, "trigger": {"reserve": 1_000}}, 422, "/problems/invalid-policy"),
        ({"\ud800": 1}, 422, "/problems/invalid-policy"),
        ("\ud800", 404, "/problems/not-found"),
    ],
)
async def test_an_invalid_inline_policy_is_a_problem(
    client: httpx.AsyncClient, policy: Any, status: int, kind: str
) -> None:
    text = json.dumps({"policy": policy})
    for method, path in (("PUT", "/v1/sessions/s"), ("POST", "/v1/sessions/s/context")):
        answer = await client.request(method, path, content=text, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["type"]) == (status, kind), path


async def test_invalid_json_is_refused(client: httpx.AsyncClient) -> None:
    for body in (b"", b"{", b"\xff", b"[" * 100_000):
        answer = await client.put("/v1/policies/mine", content=body)
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-json"), body[:10]


async def test_a_name_means_its_newest_version_when_it_is_set(client: httpx.AsyncClient) -> None:
    await put(client, "mine", {"low_water": 0.5})
    assert (await set_policy(client, "mine"))["policy"] == {"name": "mine", "version": 1}
    await put(client, "mine", {"low_water": 0.6})
    assert (await get(client, "/v1/sessions/s"))["policy"] == {"name": "mine", "version": 1}
    assert (await set_policy(client, "mine"))["policy"] == {"name": "mine", "version": 2}
    assert (await set_policy(client, "mine@1"))["policy"] == {"name": "mine", "version": 1}
    assert (await set_policy(client, "default@1"))["policy"] == {"name": "default", "version": 1}


async def test_a_context_is_planned_with_the_policy_it_names(client: httpx.AsyncClient) -> None:
    await talk(client)
    await put(client, "small", SMALL)
    answer = await client.post("/v1/sessions/s/context", json={"policy": "small", "view": "narrow"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["policy"] == {"name": "small", "version": 1}
    assert (found["tokens"]["limit"], found["tokens"]["reserve"]) == (4_000, 500)
    assert found["evictions"]
    unknown = await client.post("/v1/sessions/s/context", json={"policy": "none"})
    assert (unknown.status_code, unknown.json()["type"]) == (404, "/problems/not-found")


async def test_an_inline_policy_can_be_read_and_named_but_is_not_listed(client: httpx.AsyncClient) -> None:
    name = (await set_policy(client, CAREFUL))["policy"]["name"]
    assert name.startswith("inline:")
    assert (await get(client, f"/v1/policies/{name}"))["policy"] == CAREFUL
    assert (await set_policy(client, name, "t"))["policy"] == {"name": name, "version": 1}
    assert [item["name"] for item in await list_policies(client)] == PRESETS


async def test_a_sessions_new_policy_takes_effect(client: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
    await talk(client)
    path = "/v1/sessions/s/context"
    wide = await get(client, path)
    assert (wide["tokens"]["limit"], wide["policy"]["name"]) == (128_000, "default")
    await get(client, path, view="beside", max_tokens=60_000)
    own = (await client.post(path, json={"view": "own", "policy": {"window_tokens": 90_000}})).json()

    await put(client, "small", SMALL)
    await set_policy(other, "small")
    for view in ("main", "beside"):
        found = await get(client, path, view=view)
        assert found["policy"] == {"name": "small", "version": 1}
        assert found["tokens"]["limit"] == 4_000
        assert found["evictions"]
        again = await get(client, path, view=view)
        assert (again["epoch"], again["sha256"]) == (found["epoch"], found["sha256"])
    kept = await get(client, path, view="own")
    assert (kept["policy"], kept["epoch"], kept["sha256"]) == (own["policy"], own["epoch"], own["sha256"])

    await set_policy(client, {"economics": {"on_cold": False}})
    back = await get(client, path)
    assert back["tokens"]["limit"] == 128_000
    assert back["policy"]["name"].startswith("inline:")
    assert back["tokens"]["estimate"] > 4_000
    appended = await client.post("/v1/sessions/s/events", json={"events": [{"type": "agent.note", "content": "x"}]})
    assert appended.json()["pressure"]["budget"] == back["tokens"]["target"]


async def test_the_same_policy_again_changes_nothing(client: httpx.AsyncClient) -> None:
    await talk(client)
    await set_policy(client, SMALL)
    before = await get(client, "/v1/sessions/s/context")
    session = await get(client, "/v1/sessions/s")
    await set_policy(client, dict(reversed(SMALL.items())))
    assert (await get(client, "/v1/sessions/s"))["epoch"] == session["epoch"]
    after = await get(client, "/v1/sessions/s/context")
    assert (after["epoch"], after["sha256"]) == (before["epoch"], before["sha256"])


async def test_concurrent_contexts_never_restore_the_old_policy(client: httpx.AsyncClient) -> None:
    await talk(client)
    await get(client, "/v1/sessions/s/context")
    for window in range(20_000, 20_010):
        asked = [
            client.post("/v1/sessions/s/context", json={"max_tokens": window - number, "force": True})
            for number in range(4)
        ]
        answers = await asyncio.gather(*asked[:2], set_policy(client, {"window_tokens": window}), *asked[2:])
        assert all(a.status_code in (200, 409) for a in answers if isinstance(a, httpx.Response))
        found = await get(client, "/v1/sessions/s/context")
        assert found["policy"]["name"] == (await get(client, "/v1/sessions/s"))["policy"]["name"]


async def test_a_policy_that_leaves_no_room_in_the_models_window_is_refused(client: httpx.AsyncClient) -> None:
    await put(client, "roomy", {"reserve_tokens": 20_000})
    answer = await client.put("/v1/sessions/s", json={"policy": "roomy", "model": "gpt-4"})
    assert (answer.json()["type"], answer.json()["knob"]) == ("/problems/invalid-policy", "reserve_tokens")
    assert (await client.get("/v1/sessions/s")).status_code == 404
    await client.put("/v1/sessions/s", json={"model": "gpt-4"})
    assert (await client.put("/v1/sessions/s", json={"policy": "roomy"})).status_code == 422
    answer = await client.put("/v1/sessions/s", json={"policy": "roomy", "model": "gpt-4o"})
    assert (answer.status_code, answer.json()["policy"]["name"]) == (200, "roomy")


async def test_a_model_or_outside_tokens_that_the_policy_leaves_no_room_for_are_refused(
    client: httpx.AsyncClient,
) -> None:
    async def refused(sid: str, kind: str, **body: Any) -> None:
        before = await get(client, f"/v1/sessions/{sid}")
        answer = await client.put(f"/v1/sessions/{sid}", json=body)
        assert (answer.status_code, answer.json()["type"]) == (422, f"/problems/{kind}"), answer.text
        assert await get(client, f"/v1/sessions/{sid}") == before

    await set_policy(client, {"reserve_tokens": 50_000})
    await talk(client, rounds=1)
    await refused("s", "invalid-policy", model="gpt-4")
    await refused("s", "context-infeasible", outside_tokens=80_000)
    answer = await client.put("/v1/sessions/s", json={"model": "gpt-4", "policy": "default", "outside_tokens": 80})
    assert answer.status_code == 200, answer.text
    await refused("s", "context-infeasible", outside_tokens=8_000)

    await set_policy(client, {"reserve_tokens": 4_000}, "t")
    await talk(client, "t", rounds=1)
    await get(client, "/v1/sessions/t/context", view="title", model="gpt-4", max_tokens=8_000)
    await refused("t", "context-infeasible", outside_tokens=5_000)
    assert (await client.put("/v1/sessions/t", json={"outside_tokens": 3_000})).status_code == 200
    await refused("t", "context-infeasible", policy={"reserve_tokens": 6_000})


async def test_what_is_stored_is_acknowledged_however_little_room_there_is(
    client: httpx.AsyncClient, database: Database
) -> None:
    """A release may assume a smaller window for a model than the one that its session's policy was checked against."""
    event = {"type": "user.message", "content": "hello"}
    for sid, policy, model in (
        ("model", {"reserve_tokens": 50_000}, "gpt-4"),
        ("outside", {"outside_tokens": 50_000}, "gpt-4"),
        ("token", {"window_tokens": 1_000, "reserve_tokens": 999}, "gpt-4o"),
    ):
        await set_policy(client, policy, sid)
        await database.execute("UPDATE sessions SET model = :model WHERE external_id = :sid", model=model, sid=sid)
        for path, body in (
            ("events", {"events": [event]}),
            ("messages", {"format": "openai", "messages": [{"role": "assistant", "content": "hi"}]}),
            ("turns/end", {}),
        ):
            keyed = {"Idempotency-Key": path.replace("/", "-")}
            for _ in range(2):
                answer = await client.post(f"/v1/sessions/{sid}/{path}", json=body, headers=keyed)
                assert answer.status_code in (200, 201), (sid, path, answer.text)
                assert answer.json()["pressure"]["level"] == "hard"
        assert (await get(client, f"/v1/sessions/{sid}"))["head"] == 3


async def test_tenants_have_their_own_policies(client: httpx.AsyncClient, database: Database) -> None:
    tenants = Tenants(database, None)
    keys = {
        (tenant, scope): {"Authorization": f"Bearer {(await tenants.create_key(tenant, 'k', [scope])).secret}"}
        for tenant, scope in (("acme", "admin"), ("other", "admin"), ("acme", "read"), ("acme", "ingest"))
    }
    ours, theirs = keys["acme", "admin"], keys["other", "admin"]
    assert (await client.put("/v1/policies/mine", json=CAREFUL, headers=ours)).status_code == 201
    assert (await client.get("/v1/policies/mine", headers=theirs)).status_code == 404
    used = await client.put("/v1/sessions/s", json={"policy": "mine"}, headers=theirs)
    assert used.status_code == 404
    names = [row["name"] for row in (await client.get("/v1/policies", headers=theirs)).json()["items"]]
    assert names == PRESETS
    first = await client.put("/v1/policies/mine", json={}, headers=theirs)
    assert (first.status_code, first.json()["version"]) == (201, 1)
    mine = await client.get("/v1/policies/mine", headers=keys["acme", "read"])
    assert mine.json()["policy"] == CAREFUL
    for scope in ("read", "ingest"):
        refused = await client.put("/v1/policies/mine", json={}, headers=keys["acme", scope])
        assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden")


async def test_the_document_describes_every_knob_wherever_a_policy_is_accepted(client: httpx.AsyncClient) -> None:
    document = await get(client, "/openapi.json")
    schemas = document["components"]["schemas"]
    reference = {"$ref": "#/components/schemas/PolicyDocument"}
    body = document["paths"]["/v1/policies/{name}"]["put"]["requestBody"]
    assert body["content"]["application/json"]["schema"] == reference
    for name in ("SessionIn", "ContextIn"):
        assert reference in schemas[name]["properties"]["policy"]["anyOf"]
    policy = schemas["PolicyDocument"]
    assert policy["additionalProperties"] is False
    assert "default" in policy["properties"]["window_tokens"]
    for item in await list_policies(client):
        jsonschema.validate(item["policy"], policy)
