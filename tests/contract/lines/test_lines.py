"""Lines of a session over HTTP: rewinds, the current line, and operations that address one line."""

from typing import Any

import httpx
import pytest

from app.runtime.settings import Settings
from app.store.engine import Database
from migrations.tables import metadata
from tests.conftest import serving
from tests.support.requesting import Loopback

Json = dict[str, Any]


async def ask(http: httpx.AsyncClient, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await http.request(method, f"/v1/sessions/{path}", json=body)
    assert answer.status_code == status, (path, answer.status_code, answer.text)
    return answer.json() if answer.content else None


async def append_messages(http: httpx.AsyncClient, sid: str, *texts: str) -> Json:
    events = [{"type": "user.message", "content": text} for text in texts]
    answer: Json = await ask(http, "POST", f"{sid}/events", {"events": events}, 201)
    return answer


async def event_contents(http: httpx.AsyncClient, sid: str) -> list[str]:
    return [event["content"] for event in (await ask(http, "GET", f"{sid}/events"))["items"]]


async def rewind(http: httpx.AsyncClient, sid: str, to: int, status: int = 200) -> Json:
    answer: Json = await ask(http, "POST", f"{sid}/rewind", {"to": to}, status)
    return answer


async def shown(http: httpx.AsyncClient, sid: str) -> list[str]:
    made = await ask(http, "GET", f"{sid}/context")
    return [message["content"] for message in made["request"]["messages"]]


async def test_a_rewind_makes_a_new_current_line_and_destroys_nothing(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "one", "two", "three")
    before = await ask(client, "GET", "s/context")
    assert (before["session"], before["line"]) == ("s", "s@line.1")
    moved = await rewind(client, "s", 1)
    assert (moved["id"], moved["line"], moved["head"], moved["parent"]) == (
        "s", "s@line.2", 1, {"id": "s@line.1", "at": 1},
    )  # fmt: skip
    appended = await append_messages(client, "s", "other")
    assert (appended["session"], appended["line"], appended["head"]) == ("s", "s@line.2", 2)
    assert await event_contents(client, "s") == ["one", "other"] == await event_contents(client, "s@line.2")
    assert await event_contents(client, "s@line.1") == ["one", "two", "three"]
    made = await ask(client, "GET", "s/context")
    assert (made["session"], made["line"], made["head"]) == ("s", "s@line.2", 2)
    assert await shown(client, "s@line.1") == ["one", "two", "three"]
    page = await ask(client, "GET", "s/lines")
    assert [(one["id"], one["head"], one["current"], one["parent"], one["at"]) for one in page["items"]] == [
        ("s@line.1", 3, False, None, None),
        ("s@line.2", 2, True, "s@line.1", 1),
    ]
    first = await ask(client, "GET", "s/lines?limit=1")
    rest = await ask(client, "GET", f"s/lines?limit=1&cursor={first['next_cursor']}")
    assert ([*first["items"], *rest["items"]], rest["next_cursor"]) == (page["items"], None)
    found = await ask(client, "GET", "s")
    assert (found["id"], found["line"], found["head"]) == ("s", "s@line.2", 2)
    listed = (await client.get("/v1/sessions")).json()["items"]
    assert listed == [found]


async def test_a_cached_view_is_not_shown_after_a_rewind(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "one", "two")
    for _ in range(2):
        await ask(client, "GET", "s/context")
    await rewind(client, "s", 1)
    assert await shown(client, "s") == ["one"]
    assert await shown(client, "s@line.1") == ["one", "two"]
    assert await shown(client, "s") == ["one"]


async def test_a_rewind_applies_to_every_process(client: httpx.AsyncClient, database_url: str) -> None:
    async with (
        serving(Settings(), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30, transport=Loopback()) as other,
    ):
        await append_messages(client, "s", "one", "two")
        assert await shown(other, "s") == ["one", "two"]
        assert await shown(other, "s@line.1") == ["one", "two"]
        await rewind(client, "s", 1)
        assert await shown(other, "s@line.1") == ["one", "two"]
        assert await shown(other, "s") == ["one"]
        assert (await append_messages(other, "s", "b"))["line"] == "s@line.2"
        await rewind(other, "s", 1)
        assert (await append_messages(client, "s", "c"))["line"] == "s@line.3"
        assert await event_contents(other, "s") == ["one", "c"]


async def test_a_rewind_to_the_head_changes_nothing_and_one_beyond_it_is_refused(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "one", "two")
    assert (await rewind(client, "s", 2))["line"] == "s@line.1"
    assert "field" in await rewind(client, "s", 3, 422)
    await rewind(client, "nobody", 0, 404)
    await rewind(client, "s@line.1", 1, 422)
    assert (await rewind(client, "s", 0))["head"] == 0
    await append_messages(client, "s", "anew")
    assert await event_contents(client, "s") == ["anew"]


@pytest.mark.wing("audit")
async def test_a_call_is_found_on_any_line_of_its_session(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "one", "two")
    first = (await ask(client, "GET", "s/context"))["call_id"]
    await rewind(client, "s", 1)
    second = (await ask(client, "GET", "s/context"))["call_id"]
    for call_id, line in ((first, "s@line.1"), (second, "s@line.2")):
        found = await ask(client, "GET", f"s/calls/{call_id}")
        assert (found["session"], found["line"]) == ("s", line)
        assert (await ask(client, "GET", f"s/calls/{call_id}/context"))["reproduced"] is True
        usage = {"usage": {"input_tokens": 20}}
        assert (await ask(client, "POST", f"s/calls/{call_id}/outcome", usage))["action"] == "none"
        assert (await ask(client, "GET", f"{line}/calls/{call_id}"))["call_id"] == call_id
    await ask(client, "GET", f"s@line.2/calls/{first}", status=404)
    for path, ids in (("s", [second, first]), ("s@line.1", [first]), ("s@line.2", [second])):
        listed = (await ask(client, "GET", f"{path}/calls"))["items"]
        assert [one["call_id"] for one in listed] == ids
        found = (await client.get("/v1/audit/calls", params={"session": path})).json()["items"]
        assert [(one["call_id"], one["session"], one["line"]) for one in found] == [
            (one["call_id"], "s", one["line"]) for one in listed
        ]
        pages = {"session": path, "limit": 1, "since": "2026-01-01T00:00:00Z"}
        page = (await client.get("/v1/audit/calls", params=pages)).json()
        rest = await client.get("/v1/audit/calls", params={**pages, "cursor": page["next_cursor"] or "", "limit": 5})
        assert [one["call_id"] for one in page["items"] + (rest.json()["items"] if page["next_cursor"] else [])] == ids
    assert (await client.get("/v1/audit/calls", params={"session": "nobody"})).json()["items"] == []
    newest = await ask(client, "GET", "s/calls?limit=1")
    older = await ask(client, "GET", f"s/calls?limit=1&cursor={newest['next_cursor']}")
    assert [(one["call_id"], one["line"]) for one in older["items"]] == [(first, "s@line.1")]


@pytest.mark.wing("recall")
async def test_a_recall_for_a_call_reads_the_calls_line(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "one", "two")
    first = (await ask(client, "GET", "s/context"))["call_id"]
    await rewind(client, "s", 1)
    await append_messages(client, "s", "other")
    second = (await ask(client, "GET", "s/context"))["call_id"]

    async def recalled(address: str, status: int = 200, **asked: Any) -> Any:
        return await ask(client, "POST", f"{address}/recall", {"query": "one two other", **asked}, status)

    for call_id, words in ((first, {"one", "two"}), (second, {"one", "other"}), (None, {"one", "other"})):
        found = await recalled("s", **({} if call_id is None else {"call_id": call_id}))
        assert found["call_id"] == (call_id or second)
        assert {one["snippet"] for one in found["items"]} == words
        assert all(one["visible"] for one in found["items"])
    assert (await recalled("s@line.1", call_id=first))["call_id"] == first
    await recalled("s@line.2", 404, call_id=first)
    await recalled("s", 404, call_id="00000000-0000-0000-0000-000000000000")
    await recalled("nobody", 404)


async def test_a_repeated_append_is_recognized_after_a_rewind(client: httpx.AsyncClient) -> None:
    body = {"events": [{"type": "user.message", "content": "once"}]}
    headers = {"Idempotency-Key": "k"}
    first = await client.post("/v1/sessions/s/events", json=body, headers=headers)
    await append_messages(client, "s", "two")
    await rewind(client, "s", 1)
    for _ in range(2):
        again = await client.post("/v1/sessions/s/events", json=body, headers=headers)
        assert again.status_code == 200, again.text
        assert (again.status_code, again.json()["events"]) == (200, first.json()["events"])
    assert await event_contents(client, "s") == ["once"]


async def test_line_ids_are_reserved_for_lines(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "one")
    event = {"events": [{"type": "user.message", "content": "x"}]}
    await ask(client, "PUT", "s@line.7", {}, 422)
    await ask(client, "POST", "t@line.1/events", event, 422)
    await ask(client, "POST", "s/fork", {"id": "s@line.2"}, 422)
    await ask(client, "GET", "s@line.7", status=404)
    await ask(client, "POST", "s@line.1/events", event, 201)
    await ask(client, "PUT", "x" * 129, {}, 422)
    await ask(client, "PUT", "x" * 128, {}, 201)
    long = "x" * 128
    await append_messages(client, long, "a", "b")
    assert (await rewind(client, long, 1))["line"] == f"{long}@line.2"
    assert await event_contents(client, f"{long}@line.2") == ["a"]


async def test_a_fork_of_a_session_begins_with_its_current_line(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "one", "two")
    await rewind(client, "s", 1)
    await append_messages(client, "s", "other")
    made = await ask(client, "POST", "s/fork", {"id": "f"}, 201)
    assert made["parent"] == {"id": "s@line.2", "at": 2}
    assert await event_contents(client, "f") == ["one", "other"]
    await rewind(client, "f", 1)
    assert await event_contents(client, "f") == ["one"]
    forks = (await client.get("/v1/sessions", params={"parent": "s@line.2"})).json()["items"]
    assert [one["id"] for one in forks] == ["f"]


@pytest.mark.parametrize("forked", [False, True])
async def test_erasing_a_session_erases_all_of_its_lines(
    client: httpx.AsyncClient, database: Database, forked: bool
) -> None:
    await append_messages(client, "s", "one", "two")
    await ask(client, "GET", "s/context")
    await rewind(client, "s", 1)
    await ask(client, "GET", "s/context")
    await rewind(client, "s", 0)
    await append_messages(client, "s", "other")
    await ask(client, "DELETE", "s@line.2", status=409)
    if forked:
        await ask(client, "POST", "s/fork", {"id": "f"}, 201)
        await append_messages(client, "f", "mine")
        await rewind(client, "f", 1)
        assert (await ask(client, "DELETE", "s", status=409))["forks"] == ["f", "f@line.2"]
    await ask(client, "DELETE", "s?forks=erase" if forked else "s", status=204)
    for name in ("s", "s@line.2", "f", "f@line.2"):
        await ask(client, "GET", name, status=404)
    for table in metadata.tables.values():
        if "session_id" in table.columns:
            rows = await database.fetch(f"SELECT FROM {table.name}")
            assert not rows, table.name
    await append_messages(client, "s", "begun again")
    assert (await ask(client, "GET", "s"))["line"] == "s@line.1"


async def test_a_redaction_applies_to_every_line_that_shares_the_event(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "secret", "two")
    await rewind(client, "s", 1)
    await ask(client, "DELETE", "s/events/1", status=204)
    for line, kept in (("s", 0), ("s@line.1", 1), ("s@line.2", 0)):
        redacted, *rest = (await ask(client, "GET", f"{line}/events"))["items"]
        assert (redacted["redacted"], redacted["content"]) == (True, "[This was erased on request.]"), line
        assert [event["content"] for event in rest] == ["two"][:kept], line


async def test_metadata_put_on_a_further_line_is_the_sessions(client: httpx.AsyncClient) -> None:
    """The session is listed, and found for an erasure, by this metadata."""
    said = [{"type": "user.message", "content": word} for word in ("one", "two")]
    assert (await client.post("/v1/sessions/moved/events", json={"events": said})).is_success
    assert (await client.post("/v1/sessions/moved/rewind", json={"to": 1})).is_success
    assert (await client.post("/v1/sessions/moved/events", json={"events": said[1:]})).is_success
    put = await client.put("/v1/sessions/moved", json={"metadata": {"user": "u-17"}})
    assert put.json()["metadata"] == {"user": "u-17"}
    listed = await client.get("/v1/sessions", params={"metadata": '{"user": "u-17"}'})
    assert [one["id"] for one in listed.json()["items"]] == ["moved"], listed.text
