"""Previews over HTTP: they return what the next call would, without changing the database or the caches."""

import hashlib
import json
from typing import Any
from uuid import UUID

import httpx
import pytest

from app.store.engine import Database
from tests.contract.contexts.test_context import append, context, turn_of_rounds
from tests.support.openapi import document

pytestmark = pytest.mark.wing("compare")

INLINE = {"evict": "every_assembly", "retention": {"keep_last": 1, "min_tokens": 0}}
WIDE = {"max_tokens": 60_000, "model": "claude-sonnet-4-5", "format": "anthropic"}


async def preview(client: httpx.AsyncClient, sid: str = "s", **body: object) -> dict[str, Any]:
    answer = await client.post(f"/v1/sessions/{sid}/context:preview", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    canonical = json.dumps(made["request"], ensure_ascii=False, separators=(",", ":"))
    assert hashlib.sha256(canonical.encode()).hexdigest() == made["sha256"]
    assert (made["call_id"], made["preview"]) == (None, True)
    return made


async def call_context(client: httpx.AsyncClient, **body: object) -> dict[str, Any]:
    answer = await client.post("/v1/sessions/s/context", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def contents(database: Database) -> dict[str, list[str]]:
    """Return every row of every table as text."""
    tables = await database.fetch(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
    )
    return {
        table: [row["row"] for row in await database.fetch(f"SELECT t::text AS row FROM {table} t ORDER BY 1")]
        for (table,) in tables
    }


@pytest.fixture
async def filled_client(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """A client whose session `s` has twenty turns and one recorded call."""
    await append(client, [{"type": "system.prompt", "content": "Be brief."}])
    for turn in range(20):
        await append(client, turn_of_rounds(4, first=turn * 4, words=300))
    await call_context(client, **WIDE)
    return client


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"format": "anthropic"},
        {"max_tokens": 8_000},
        {"model": "gpt-4o", "max_tokens": 12_000},
        {"policy": INLINE},
        {"policy": "clip", "max_tokens": 20_000},
        {"force": True},
        {"at": 40},
        {"view": "titles", "max_tokens": 9_000, "format": "openai-responses"},
        {"now": "2031-01-01T00:00:00Z"},
        {
            "policy": {"injection_reserve_tokens": 500},
            "injections": [{"name": "clock", "content": "It is ten."}],
        },
    ],
    ids=json.dumps,
)
async def test_a_call_equals_its_preview(
    filled_client: httpx.AsyncClient, database: Database, body: dict[str, Any]
) -> None:
    before = await contents(database)
    first = await preview(filled_client, **body)
    again = await preview(filled_client, **body)
    expires = [made["cache"].pop("expires_at") for made in (first, again)]
    assert first == again and sorted(filter(None, expires)) == [one for one in expires if one]
    assert await contents(database) == before
    real = await call_context(filled_client, **body)
    assert (real["cache"].pop("expires_at") is None) is (expires == [None, None])
    same = set(real) - {"call_id", "compaction"}  # `compaction` shows what other calls have requested meanwhile
    assert {name: first[name] for name in same} == {name: real[name] for name in same}
    assert set(first) - set(real) == {"preview", "cause"}
    epochs = (await filled_client.get("/v1/sessions/s/epochs", params={"view": real["view"]})).json()["items"]
    opened = [row for row in epochs if row["epoch"] == first["epoch"]]
    assert (first["cause"] is not None) == (len(await rows_of(database, "epochs")) > len(before["epochs"]))
    assert first["cause"] in (None, opened[0]["cause"])


async def rows_of(database: Database, table: str) -> list[str]:
    return (await contents(database))[table]


async def test_a_preview_does_not_change_the_cached_view(filled_client: httpx.AsyncClient) -> None:
    kept = await context(filled_client, format="anthropic")
    for body in ({"max_tokens": 6_000}, {"policy": INLINE}, {"model": "gpt-4o"}):
        made = await preview(filled_client, **body)
        assert made["epoch"] == kept["epoch"] + 1
        assert made["sha256"] != kept["sha256"]
    await append(filled_client, turn_of_rounds(1, first=900, words=5))
    after = await context(filled_client, format="anthropic")
    assert after["epoch"] == kept["epoch"]
    assert after["tokens"]["estimate"] > kept["tokens"]["estimate"]


async def test_a_preview_sees_new_events(filled_client: httpx.AsyncClient) -> None:
    before = await preview(filled_client)
    await append(filled_client, [{"type": "user.message", "content": "And now?"}])
    after = await preview(filled_client)
    assert after["head"] == before["head"] + 1
    assert (before["cause"], after["cause"]) == (None, None)
    assert "And now?" in json.dumps(after["request"])


async def test_a_preview_as_of_an_earlier_seq_may_have_another_policy(filled_client: httpx.AsyncClient) -> None:
    then = await preview(filled_client, at=101)
    other = await preview(filled_client, at=101, policy=INLINE, max_tokens=7_000)
    assert then["head"] == other["head"] == 101
    assert other["cause"] == "window"
    assert other["tokens"]["estimate"] < then["tokens"]["estimate"]
    assert {row["to_seq"] <= 101 for row in other["evictions"]} == {True}
    shown = json.dumps(other["request"])
    assert ("Task 28" in shown, "Task 32" in shown) == (True, False)


async def test_a_previews_diff_equals_that_of_its_call(filled_client: httpx.AsyncClient, database: Database) -> None:
    first = await call_context(filled_client)
    await append(filled_client, turn_of_rounds(2, first=500, words=30))
    before = await contents(database)
    for body in ({}, {"max_tokens": 7_000}, {"policy": INLINE}, {"at": 101}):
        answer = await filled_client.post(
            "/v1/sessions/s/context:preview", params={"diff_with": first["call_id"]}, json=body
        )
        assert answer.status_code == 200, answer.text
        assert await contents(database) == before
        diff = answer.json()["diff"]
        assert (diff["a"]["call_id"], diff["b"]["call_id"]) == (first["call_id"], None)
        assert diff["identical"] is False
        assert diff["changes"]
        assert sum(diff["tokens"]["by_cause"].values()) == diff["tokens"]["b"] - diff["tokens"]["a"]
        causes = {change["cause"] for change in diff["changes"]}
        if "max_tokens" in body:
            assert "window" in causes
    real = await call_context(filled_client, max_tokens=7_000)
    against_real = (
        await filled_client.post(
            "/v1/sessions/s/context:preview", params={"diff_with": real["call_id"]}, json={"max_tokens": 7_000}
        )
    ).json()["diff"]
    assert (against_real["identical"], against_real["changes"]) == (True, [])
    recorded = (await filled_client.get(f"/v1/sessions/s/calls/{first['call_id']}/diff/{real['call_id']}")).json()
    again = (
        await filled_client.post(
            "/v1/sessions/s/context:preview", params={"diff_with": first["call_id"]}, json={"max_tokens": 7_000}
        )
    ).json()["diff"]
    assert (again["tokens"], again["first_difference"]) == (recorded["tokens"], recorded["first_difference"])
    assert [_without_nones(change) for change in again["changes"]] == [
        _without_nones(change) for change in recorded["changes"]
    ]


def _without_nones(change: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in change.items() if value is not None}


async def test_a_diff_with_an_unknown_call_is_refused(filled_client: httpx.AsyncClient) -> None:
    for given, slug in ((str(UUID(int=1)), "not-found"), ("nonsense", "invalid-request")):
        answer = await filled_client.post("/v1/sessions/s/context:preview", params={"diff_with": given}, json={})
        assert answer.json()["type"] == f"/problems/{slug}"


async def test_a_preview_opens_no_view_and_creates_no_session(client: httpx.AsyncClient, database: Database) -> None:
    missing = await client.post("/v1/sessions/none/context:preview", json={})
    assert (missing.status_code, missing.json()["type"]) == (404, "/problems/not-found")
    await client.put("/v1/sessions/s", json={})
    empty = await client.post("/v1/sessions/s/context:preview", json={})
    assert (empty.status_code, empty.json()["type"]) == (422, "/problems/nothing-to-send")
    await append(client, [{"type": "user.message", "content": "hello"}])
    made = await preview(client)
    assert (made["epoch"], made["cause"]) == (1, "start")
    assert await rows_of(database, "views") == []
    assert (await client.get("/v1/sessions/s")).json()["epoch"] == 0


@pytest.mark.parametrize(
    ("body", "slug"),
    [
        ({"max_tokens": 12}, "context-infeasible"),
        ({"at": 100_000}, "invalid-request"),
        ({"surprise": 1}, "invalid-request"),
        ({"policy": {"nonsense": 1}}, "invalid-policy"),
        ({"injections": [{"name": "n", "content": "x" * 400}], "max_tokens": 800}, "injection-over-reserve"),
        ({"policy": "no-such"}, "not-found"),
    ],
    ids=json.dumps,
)
async def test_a_preview_fails_as_its_call_would(
    filled_client: httpx.AsyncClient, database: Database, body: dict[str, Any], slug: str
) -> None:
    before = await contents(database)
    refused = await filled_client.post("/v1/sessions/s/context:preview", json=body)
    assert refused.json()["type"] == f"/problems/{slug}"
    assert await contents(database) == before
    real = await filled_client.post("/v1/sessions/s/context", json=body)
    assert (real.status_code, real.json()) == (refused.status_code, refused.json())


async def test_a_new_inline_policy_is_stored_by_the_call_and_not_by_its_preview(
    filled_client: httpx.AsyncClient, database: Database
) -> None:
    made = await preview(filled_client, policy=INLINE)
    assert await rows_of(database, "policies") == []
    real = await call_context(filled_client, policy=INLINE)
    assert made["policy"] == real["policy"]
    assert len(await rows_of(database, "policies")) == 1
    await preview(filled_client)  # with the policy that the view has now


async def test_the_document_names_the_problem_of_an_invalid_policy(filled_client: httpx.AsyncClient) -> None:
    answer = await filled_client.post("/v1/sessions/s/context:preview", json={"policy": {"low_water": 7}})
    operation = json.loads(document())["paths"]["/v1/sessions/{sid}/context:preview"]["post"]
    named = operation["responses"][str(answer.status_code)]["content"]["application/problem+json"]["examples"]
    assert answer.json()["type"] == "/problems/invalid-policy"
    assert "invalid-policy" in named
