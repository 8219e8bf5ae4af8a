"""Lists over HTTP: their filters, pages and notation."""

import json
from typing import Any

import httpx
import pytest

from app.store import event_log, session_filter

SESSIONS = [
    ("a", {"model": "gpt-4o"}, {"user": "ann", "tags": ["x", "y"], "plan": {"tier": 2, "trial": False}}),
    ("b", {"model": "claude-sonnet-5-5"}, {"user": "bob"}),
    ("c", {}, {"user": "ann"}),
    ("d", {"model": "gpt-4o"}, {}),
]
EVENTS = [
    {"type": "user.message", "content": "Go", "author": "ann"},
    {"type": "assistant.message", "content": "I look", "author": "planner"},
    {"type": "tool.call", "call_id": "1", "tool": "read", "author": "worker"},
    {"type": "tool.call", "call_id": "2", "tool": "read", "author": "planner"},
    {"type": "tool.result", "call_id": "1", "content": "one"},
    {"type": "tool.result", "call_id": "2", "content": "two"},
    {"type": "user.message", "content": "More", "author": "ann"},
]


async def items(http: httpx.AsyncClient, path: str, **params: Any) -> list[Any]:
    """Return all items of a list, page by page."""
    found: list[Any] = []
    for _ in range(50):
        answer = await http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        if answer.json()["next_cursor"] is None:
            return found
        params["cursor"] = answer.json()["next_cursor"]
    raise AssertionError("the list has no end")


async def names(http: httpx.AsyncClient, **params: Any) -> list[str]:
    return [one["id"] for one in await items(http, "/v1/sessions", **params)]


async def fill(http: httpx.AsyncClient) -> None:
    for name, settings, metadata in SESSIONS:
        assert (await http.put(f"/v1/sessions/{name}", json={**settings, "metadata": metadata})).status_code == 201


async def test_sessions_are_found_by_model_metadata_and_date(client: httpx.AsyncClient) -> None:
    await fill(client)
    assert await names(client) == ["d", "c", "b", "a"]
    assert await names(client, model="gpt-4o") == ["d", "a"]
    assert await names(client, metadata='{"user": "ann"}') == ["c", "a"]
    assert await names(client, metadata='{"plan": {"tier": 2}}') == ["a"]
    assert await names(client, metadata='{"plan": {"tier": "2"}}') == []
    assert await names(client, metadata='{"tags": ["y"]}', model="gpt-4o") == ["a"]
    assert await names(client, metadata='{"user": "ann"}', model="claude-sonnet-5-5") == []
    assert await names(client, metadata="{}", limit=2) == ["d", "c", "b", "a"]
    made = {one["id"]: one["created_at"] for one in await items(client, "/v1/sessions")}
    assert await names(client, since=made["b"]) == ["d", "c", "b"]
    assert await names(client, until=made["c"]) == ["b", "a"]
    assert await names(client, since=made["b"], until=made["d"], limit=1) == ["c", "b"]


async def test_a_session_search_continues_after_the_scan_limit(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client)
    monkeypatch.setattr("app.store.sessions.SCAN_MAX", 1)
    assert await names(client, metadata='{"user": "bob"}') == ["b"]
    assert await names(client, model="gpt-4o", limit=1) == ["d", "a"]
    assert session_filter.SCAN_MAX > 1


@pytest.mark.parametrize(
    "given", ["x", "[]", '"a"', "null", '{"a": "\\u0000"}', '{"a": 1e999}', '{"a":' * 90 + "1" + "}" * 90, "{" * 4000]
)
async def test_metadata_that_is_no_object_is_an_error(refusing: httpx.AsyncClient, given: str) -> None:
    answer = await refusing.get("/v1/sessions", params={"metadata": given})
    assert answer.status_code in (200, 422)
    if answer.status_code == 422:
        assert answer.json()["field"] == "metadata"
    assert (answer.status_code == 200) is (given.count("}") == 90)


async def test_events_are_found_by_type_and_author(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})

    async def seqs(**params: Any) -> list[int]:
        return [one["seq"] for one in await items(client, "/v1/sessions/s/events", **params)]

    assert await seqs(type="user.message") == [1, 7]
    assert await seqs(author="planner") == [2, 4]
    assert await seqs(type="tool.call", author="planner") == [4]
    assert await seqs(type="announce") == []
    assert await seqs(type="tool.call", limit=1) == [3, 4]
    assert await seqs(type="user.message", after=1) == [7]
    wrong = await client.get("/v1/sessions/s/events", params={"type": "gossip"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "type")
    assert (await client.get("/v1/sessions/none/events", params={"type": "tools"})).status_code == 404


async def test_an_event_search_includes_a_forks_parent_and_continues_after_the_scan_limit(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})
    await client.post("/v1/sessions/s/fork", json={"id": "f", "at": 6})
    await client.post("/v1/sessions/f/events", json={"events": EVENTS[:1]})
    assert [one["seq"] for one in await items(client, "/v1/sessions/f/events", author="ann")] == [1, 7]
    monkeypatch.setattr(event_log, "SCAN_MAX", 2)
    assert [one["seq"] for one in await items(client, "/v1/sessions/f/events", author="ann")] == [1, 7]


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_an_exactly_full_last_page_has_no_cursor(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})
    for seen in range(2):
        await client.get("/v1/sessions/s/context", params={"max_tokens": 9000 + seen})
    await client.put("/v1/policies/mine", json={})
    lists: list[tuple[str, dict[str, Any]]] = [
        ("/v1/sessions", {}),
        ("/v1/sessions/s/events", {}),
        ("/v1/sessions/s/events", {"type": "tool.call"}),
        ("/v1/sessions/s/turns", {}),
        ("/v1/sessions/s/calls", {}),
        ("/v1/sessions/s/epochs", {}),
        ("/v1/sessions/s/events/1/history", {}),
        ("/v1/policies", {}),
        ("/v1/audit/calls", {}),
    ]
    for path, params in lists:
        whole = (await client.get(path, params=params)).json()["items"]
        assert whole, path
        page = (await client.get(path, params={**params, "limit": len(whole)})).json()
        assert (page["items"], page["next_cursor"]) == (whole, None), path
        if len(whole) > 1:
            first = (await client.get(path, params={**params, "limit": len(whole) - 1})).json()
            rest = await client.get(path, params={**params, "cursor": first["next_cursor"]})
            assert first["items"] + rest.json()["items"] == whole, path


async def test_an_unknown_view_is_not_found_and_main_always_exists(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})
    for path in ("epochs", "coverage"):
        answer = await client.get(f"/v1/sessions/s/{path}", params={"view": "other"})
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found"), path
    assert (await client.get("/v1/sessions/s/epochs")).json() == {"items": [], "next_cursor": None}
    proof = (await client.get("/v1/sessions/s/coverage")).json()
    assert (proof["ok"], proof["epoch"], proof["runs"]) == (
        True,
        0,
        [{"from_seq": 1, "to_seq": 7, "disposition": "verbatim"}],
    )
    await client.put("/v1/sessions/empty")
    assert (await client.get("/v1/sessions/empty/coverage")).json()["runs"] == []


def times(value: Any) -> list[str]:
    """Return all values that look like times, at any depth."""
    if isinstance(value, dict):
        return [found for one in value.values() for found in times(one)]
    if isinstance(value, list):
        return [found for one in value for found in times(one)]
    return [value] if isinstance(value, str) and value[:2] == "20" and value[10:11] == "T" else []


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_all_times_have_one_notation(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})
    asked = {"now": "2026-11-22T12:00:00+02:00", "max_tokens": 9000}
    call = (await client.post("/v1/sessions/s/context", json=asked)).json()["call_id"]
    await client.post(f"/v1/sessions/s/calls/{call}/outcome", json={"usage": {"input_tokens": 90}})
    await client.put("/v1/sessions/s/layers/sources", json={"content": "x"})
    await client.put("/v1/policies/mine", json={})
    await client.post("/v1/sessions/s/compactions")
    paths = ["", "/events", "/calls", f"/calls/{call}", f"/calls/{call}/context", f"/calls/{call}/diff/{call}"]
    paths += ["/events/1/history", "/epochs", "/layers", "/compactions"]
    for path in [*(f"/v1/sessions/s{one}" for one in paths), "/v1/sessions", "/v1/policies", "/v1/audit/calls"]:
        found = times((await client.get(path)).json())
        assert found, path
        assert all(one.endswith("Z") for one in found), (path, found)
    assert (await client.get(f"/v1/sessions/s/calls/{call}")).json()["now"] == "2026-11-22T10:00:00Z"


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_an_assumed_window_is_marked(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})

    async def limit(**params: Any) -> tuple[int, bool]:
        found = (await client.get("/v1/sessions/s/context", params=params)).json()
        again = (await client.get(f"/v1/sessions/s/calls/{found['call_id']}")).json()
        assert again["tokens"] == found["tokens"]
        preview = (await client.post("/v1/sessions/s/context:preview", json=params)).json()
        assert preview["tokens"]["limit_assumed"] == found["tokens"]["limit_assumed"]
        return found["tokens"]["limit"], found["tokens"]["limit_assumed"]

    assert await limit() == (128_000, True)
    assert await limit(model="acme-9") == (128_000, True)
    assert await limit(model="gpt-4o") == (128_000, False)
    assert await limit(model="acme-9", max_tokens=50_000) == (50_000, False)
    assert await limit(model="acme-9") == (50_000, False), "a view keeps its window"
    assert await limit(model="acme-9", max_tokens=128_000) == (128_000, False), "stated, although it is the default"
    await client.put("/v1/policies/wide", json={"window_tokens": 128_000})
    await client.put("/v1/sessions/s", json={"policy": "wide", "model": "acme-10"})
    assert await limit(model="acme-10") == (128_000, False), "the policy states it"
    for model, assumed in ((None, True), ("acme-9", True), ("claude-sonnet-5-5", False)):
        settings = {} if model is None else {"model": model}
        assert (await client.put("/v1/sessions/t", json=settings)).json()["window_assumed"] is assumed


@pytest.mark.wing("compare")
async def test_the_same_context_in_two_formats_is_not_identical(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})
    ids = []
    for form in ("openai", "openai", "anthropic"):
        answer = await client.get("/v1/sessions/s/context", params={"format": form, "max_tokens": 9000})
        ids.append(answer.json()["call_id"])
    for other, same in ((ids[1], True), (ids[2], False)):
        found = (await client.get(f"/v1/sessions/s/calls/{ids[0]}/diff/{other}")).json()
        assert (found["identical"], found["changes"]) == (same, [])
    found = (await client.post(f"/v1/sessions/s/context:preview?diff_with={ids[2]}", json={"format": "openai"})).json()
    assert found["diff"]["identical"] is False


@pytest.mark.parametrize(
    ("at", "left_out"),
    [
        (1, []),
        (2, [("tool.call", 3), ("tool.call", 4)]),
        (3, [("tool.call", 4), ("tool.result", 5)]),
        (4, [("tool.result", 5), ("tool.result", 6)]),
        (5, [("tool.result", 6)]),
        (6, []),
        (7, []),
        (None, []),
    ],
)
async def test_a_fork_and_a_rewind_inside_parallel_calls_list_what_they_left_out(
    client: httpx.AsyncClient, at: int | None, left_out: list[tuple[str, int]]
) -> None:
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})
    body = {"id": "f"} if at is None else {"id": "f", "at": at}
    made = await client.post("/v1/sessions/s/fork", json=body)
    assert made.status_code == 201
    assert [(one["type"], one["seq"]) for one in made.json()["left_out"]] == left_out
    assert all(one["tool"] == "read" and one["call_id"] in "12" for one in made.json()["left_out"])
    again = await client.post("/v1/sessions/s/fork", json=body)
    assert (again.status_code, again.json()["left_out"]) == (200, made.json()["left_out"])
    second = await client.post("/v1/sessions/f/fork", json={"id": "g"})
    assert second.json()["left_out"] == [], "the fork's own log ends there"
    body = {"to": len(EVENTS) if at is None else at}
    gone = await client.post("/v1/sessions/s/rewind", json=body)
    assert (gone.status_code, gone.json()["left_out"]) == (200, made.json()["left_out"])
    again = await client.post("/v1/sessions/s/rewind", json=body)
    assert (again.json()["line"], again.json()["left_out"]) == (gone.json()["line"], []), "the line ends there"


@pytest.mark.wing("audit")
async def test_redacted_events_are_marked_and_injections_have_their_length(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})
    parts = [{"type": "text", "text": "four"}, {"type": "text", "text": "and"}]
    body = {"injections": [{"name": "hook", "content": parts}], "max_tokens": 9000}
    call = (await client.post("/v1/sessions/s/context", json=body)).json()["call_id"]
    record = (await client.get(f"/v1/sessions/s/calls/{call}")).json()
    assert record["injections"] == [{"name": "hook", "chars": len("four\nand")}]
    await client.delete("/v1/sessions/s/events/2")
    assert (await client.get("/v1/sessions/s/events/2")).json()["redacted"] is True
    document = (await client.get("/openapi.json")).json()
    assert "redacted" in json.dumps(document["components"]["schemas"]["EventOut"]["properties"])
