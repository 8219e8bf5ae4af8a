"""Erasures by filter: a worker erases all matching sessions, nothing of them stays, and there is a receipt."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid5

import httpx
import pytest

from app import worker
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database, acting_for
from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT, SCOPES, Tenants
from app.wings.retention import store as erasures
from app.wings.retention.erasures import UNEXPECTED_MAX, Erasures
from tests.conftest import serving
from tests.contract.contexts.test_context import append, turn_of_rounds
from tests.support.queue import wait_until_idle
from tests.support.receiver import receiving
from tests.support.walk import POLICY, SECRET_WORD, Walker

ANN = {"metadata": {"user": "ann"}}
SECONDS_MAX = 60
RECEIPTS = {"erased", "erased_names", "erasures"}


async def session(client: httpx.AsyncClient, name: str, user: str, **more: Any) -> None:
    assert (await client.put(f"/v1/sessions/{name}", json={"metadata": {"user": user}, **more})).is_success
    await append(client, turn_of_rounds(1), sid=name)


async def session_ids(client: httpx.AsyncClient) -> set[str]:
    return {one["id"] for one in (await client.get("/v1/sessions")).json()["items"]}


async def begin_erasure(client: httpx.AsyncClient, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    answer = await client.post("/v1/erasures", json=body, headers={} if key is None else {"Idempotency-Key": key})
    assert answer.status_code == 202, answer.text
    begun: dict[str, Any] = answer.json()
    assert begun["state"] == "running"
    return begun


async def run_erasure(application: Database, begun: dict[str, Any]) -> None:
    """Run the erasure as a worker's job does."""
    with acting_for(DEFAULT_TENANT):
        await Erasures(application).work(DEFAULT_TENANT, UUID(begun["id"]))


async def receipt(client: httpx.AsyncClient, begun: dict[str, Any]) -> dict[str, Any]:
    answer = await client.get(f"/v1/erasures/{begun['id']}")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


@asynccontextmanager
async def working(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(worker, "DEQUEUE_TIMEOUT", timedelta(seconds=0.1))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(database_url, stop, wiring.worker_work(Settings())))
    try:
        yield
    finally:
        stop.set()
        await running


async def wait_until_done(client: httpx.AsyncClient, begun: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(SECONDS_MAX):
        while (found := await receipt(client, begun))["state"] != "done":
            pass
    return found


async def tables_containing(database: Database, *words: str) -> dict[str, set[str]]:
    """Return the tables that contain each word, in any column."""
    tables = await database.fetch(
        "SELECT relname AS name FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
    )
    found: dict[str, set[str]] = {word: set() for word in words}
    for table in (row["name"] for row in tables):
        # bytes too, in hexadecimal: the queue's payloads
        rows = await database.fetch(f"SELECT t::text AS text, row_to_json(t)::text AS json FROM {table} t")
        text = "\n".join(row["text"] + row["json"] for row in rows)
        for word in words:
            if word in text or word.encode().hex() in text:
                found[word].add(table)
    return found


@pytest.mark.wing("webhooks")
@pytest.mark.wing("warmings")
@pytest.mark.wing("audit")
@pytest.mark.wing("recall")
async def test_nothing_of_the_erased_sessions_is_in_any_table(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sessions have rows in every table of a session's data, and a worker runs."""
    async with (
        receiving() as receiver,
        serving(Settings(webhook_private_targets=True), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=90) as http,
        working(database_url, monkeypatch),
    ):
        await fill_sessions(Walker(http), receiver.url)
        ids = [session_key(DEFAULT_TENANT, name) for name in ("ann-1", "ann-2", "ann-2@line.2", "ann-fork")]
        keys = list(map(str, ids))
        before = await tables_containing(database, SECRET_WORD, "ann", *keys)
        empty = set(erasures.TABLES) - {table for key in keys for table in before[key]}
        assert not empty, f"no rows in {sorted(empty)}: add a request to `fill_sessions`"
        with_session = await database.fetch(
            "SELECT attrelid::regclass::text AS name FROM pg_attribute JOIN pg_class c ON c.oid = attrelid "
            "WHERE attname = 'session_id' AND c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace"
        )
        stored = {row["name"] for row in with_session} - RECEIPTS
        assert stored == set(erasures.TABLES), (
            "add a table to `Wing.tables` of its wing; one of the kernel to retention.store.TABLES"
        )

        forecast = (await http.post("/v1/erasures:preview", json=ANN)).json()
        assert (forecast["sessions"], forecast["kept"], forecast["more"]) == (3, 0, False)
        found = await wait_until_done(http, await begin_erasure(http, ANN, key="forget ann"))
        await wait_until_idle(
            database
        )  # a job that is running when its session is erased leaves the queue when it ends
        after = await tables_containing(database, SECRET_WORD, "ann", *keys)
        assert {word: after.pop(word) for word in (SECRET_WORD, "ann")} == {SECRET_WORD: set(), "ann": set()}
        assert after == {key: set() if key == keys[2] else {"erased", "erased_names"} for key in keys}
        assert await session_ids(http) == {"bob-1"}
        assert (await http.get("/v1/sessions/bob-1/context")).status_code == 200

        assert (found["sessions"], found["kept"], set(found["counts"])) == (3, 0, set(erasures.TABLES))
        assert found["counts"]["sessions"] == 4  # including a further line
        text = json.dumps(ANN, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert found["filter_sha256"] == hashlib.sha256(text.encode()).hexdigest()
        listed = (await http.get(f"/v1/erasures/{found['id']}/sessions")).json()["items"]
        tenant = UUID(found["tenant_id"])
        assert {one["session_id"] for one in listed} == {
            str(uuid5(tenant, name)) for name in ("ann-1", "ann-2", "ann-fork")
        }


async def fill_sessions(on: Walker, hook: str) -> None:
    """Create two users' sessions, one with a fork and one with a further line."""
    await on.ask("PUT", "/v1/webhooks/{name}", {"url": hook, "events": ["compaction.finished"]}, name="h")
    await on.ask("PUT", "/v1/sessions/{sid}", {"policy": POLICY, **ANN}, sid="ann-1")
    await on.append("ann-1", {"type": "agent.note", "content": SECRET_WORD, "id": "n", "path": "/ann"}, key="ann's")
    await on.talk("ann-1", 14)
    await on.ask("POST", "/v1/sessions/{sid}/compactions", {"wait_ms": 60_000}, sid="ann-1")
    made = await on.ask("GET", "/v1/sessions/{sid}/context", sid="ann-1")
    usage = {"usage": {"input_tokens": 4000}}
    path = "/v1/sessions/{sid}/calls/{call_id}/outcome"
    await on.ask("POST", path, usage, sid="ann-1", call_id=made["call_id"])
    warmings = "/v1/sessions/{sid}/calls/{call_id}/warmings"
    await on.ask("POST", warmings, usage, sid="ann-1", call_id=made["call_id"])
    hidden = [{"seq": made["head"], "replacement": f"no {SECRET_WORD}"}]
    await on.ask("PATCH", "/v1/sessions/{sid}/visibility", {"hide": hidden, "force": True}, sid="ann-1")
    await on.ask("POST", "/v1/sessions/{sid}/recall", {"query": f"{SECRET_WORD} question"}, sid="ann-1")
    await on.ask("PUT", "/v1/sessions/{sid}/layers/{kind}", {"content": SECRET_WORD}, sid="ann-1", kind="sources")
    await on.ask("DELETE", "/v1/sessions/{sid}/events/{seq}", sid="ann-1", seq=2)
    await on.ask("POST", "/v1/sessions/{sid}/fork", {"id": "ann-fork", **ANN}, sid="ann-1")
    await on.append("ann-fork", {"type": "user.message", "content": SECRET_WORD})
    await on.ask("GET", "/v1/sessions/{sid}/context", sid="ann-fork")
    await on.ask("PUT", "/v1/sessions/{sid}", ANN, sid="ann-2")
    talk = [{"role": role, "content": f"{SECRET_WORD} {n}"} for n in range(3) for role in ("user", "assistant")]
    for messages in (talk, [*talk[:3], {"role": "user", "content": f"{SECRET_WORD} instead"}]):
        await on.ask("POST", "/v1/sessions/{sid}/context", {"messages": messages}, sid="ann-2")
    await on.ask("PUT", "/v1/sessions/{sid}", {"metadata": {"user": "bob"}}, sid="bob-1")
    await on.append("bob-1", {"type": "user.message", "content": "mine"})
    await on.until(
        "/v1/webhooks/{name}/deliveries",
        lambda found: any(one["state"] == "delivered" for one in found["items"]),
        name="h",
    )


async def test_a_preview_lists_exactly_the_erased_sessions(client: httpx.AsyncClient, application: Database) -> None:
    for number in range(5):
        await session(client, f"ann-{number}", "ann", model="gpt-5" if number < 3 else "gpt-4o")
        await session(client, f"bob-{number}", "bob")
    body = {**ANN, "model": "gpt-5"}
    found, cursor = [], None
    while True:
        params = {"limit": 2, **({} if cursor is None else {"cursor": cursor})}
        page = (await client.post("/v1/erasures:preview", json=body, params=params)).json()
        found += [one["id"] for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == ["ann-2", "ann-1", "ann-0"]
    before = await session_ids(client)
    begun = await begin_erasure(client, body)
    assert await session_ids(client) == before
    await run_erasure(application, begun)
    assert before - await session_ids(client) == set(found)
    assert (await receipt(client, begun))["sessions"] == 3
    await session(client, "ann-0", "ann")  # in a process that had cached the old session
    assert (await client.get("/v1/sessions/ann-0")).json()["head"] == len(turn_of_rounds(1))
    assert (await client.get("/v1/sessions/ann-0/context")).status_code == 200


async def test_a_session_with_other_forks_is_kept_unless_forks_are_erased(
    client: httpx.AsyncClient, application: Database
) -> None:
    await session(client, "a", "ann")
    await client.post("/v1/sessions/a/fork", json={"id": "of-bob", "metadata": {"user": "bob"}})
    await session(client, "b", "ann")
    await client.post("/v1/sessions/b/fork", json={"id": "own", "metadata": {"user": "ann"}})
    preview = (await client.post("/v1/erasures:preview", json=ANN)).json()
    assert (preview["sessions"], preview["kept"]) == (2, 1)
    assert {one["id"] for one in preview["items"] if one["kept"]} == {"a"}
    begun = await begin_erasure(client, ANN)
    await run_erasure(application, begun)
    found = await receipt(client, begun)
    assert (found["sessions"], found["kept"], await session_ids(client)) == (2, 1, {"a", "of-bob"})
    preview = (await client.post("/v1/erasures:preview", json={**ANN, "forks": "erase"})).json()
    assert (preview["sessions"], preview["kept"]) == (2, 0)
    begun = await begin_erasure(client, {**ANN, "forks": "erase"})
    await run_erasure(application, begun)
    found = await receipt(client, begun)
    assert (found["sessions"], found["kept"], await session_ids(client)) == (2, 0, set())


async def test_a_repeated_request_is_the_same_erasure(client: httpx.AsyncClient, application: Database) -> None:
    await session(client, "a", "ann")
    begun = await begin_erasure(client, ANN, key="k")
    again = await client.post("/v1/erasures", json=ANN, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()) == (200, begun)
    await run_erasure(application, begun)
    await session(client, "b", "ann")
    again = await client.post("/v1/erasures", json=ANN, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["state"], again.json()["sessions"]) == (200, "done", 1)
    for other in ({"metadata": {"user": "bob"}}, {**ANN, "forks": "erase"}):
        refused = await client.post("/v1/erasures", json=other, headers={"Idempotency-Key": "k"})
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/idempotency-conflict")
    assert await session_ids(client) == {"b"}


async def test_sessions_created_or_changed_after_the_request_are_kept(
    client: httpx.AsyncClient, application: Database, database: Database
) -> None:
    for name in ("a", "b", "c"):
        await session(client, name, "ann")
    begun = await begin_erasure(client, {**ANN, "until": "2999-01-01T00:00:00Z"})
    await session(client, "later", "ann")
    await session(client, "b", "bob")
    await run_erasure(application, begun)
    assert await session_ids(client) == {"b", "later"}
    await run_erasure(application, begun)  # a job delivered twice
    assert ((await receipt(client, begun))["sessions"], await session_ids(client)) == (2, {"b", "later"})
    assert await database.fetch("SELECT FROM erasures WHERE filter IS NOT NULL") == []


class SimulatedCrash(Exception):
    pass


async def test_another_worker_finishes_an_interrupted_erasure(
    client: httpx.AsyncClient,
    application: Database,
    database: Database,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every noted session is erased and every erased session is noted; a lost job is found again."""
    for number in range(6):
        await session(client, f"s{number}", "ann")
    begun = await begin_erasure(client, ANN)
    note, noted = erasures.record_erased, 0

    async def dying(*given: Any) -> None:
        nonlocal noted
        if noted == 3:
            raise SimulatedCrash
        noted += 1
        await note(*given)

    with monkeypatch.context() as patch:
        patch.setattr(erasures, "record_erased", dying)
        with pytest.raises(SimulatedCrash):
            await run_erasure(application, begun)
    now = await receipt(client, begun)
    assert (now["state"], now["sessions"], now["counts"], len(await session_ids(client))) == ("running", 3, None, 3)
    assert len((await client.get(f"/v1/erasures/{begun['id']}/sessions")).json()["items"]) == 3
    await database.execute("DELETE FROM pgqueuer")
    assert (await erasures.enqueue_unfinished(application), await erasures.enqueue_unfinished(application)) == (1, 0)
    async with working(database_url, monkeypatch):
        found = await wait_until_done(client, begun)
    assert (found["sessions"], found["counts"]["sessions"], await session_ids(client)) == (6, 6, set())


async def test_concurrent_workers_erase_each_session_once(client: httpx.AsyncClient, application: Database) -> None:
    for number in range(10):
        await session(client, f"s{number}", "ann")
    begun = await begin_erasure(client, ANN)
    await asyncio.gather(*(run_erasure(application, begun) for _ in range(3)))
    found = await receipt(client, begun)
    assert (found["sessions"], found["counts"]["sessions"], await session_ids(client)) == (10, 10, set())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": {}},
        {"metadata": []},
        {"metadata": {"a": {}}},
        {"metadata": {"a": []}},
        {"metadata": {"a": None}},
        {"metadata": {"a": [None], "b": {"c": None}}},
        {"metadata": {"a": 1, "b": {"c": [{}]}}},
        {"metadata": {"a": "\x00"}},
        {"metadata": {"a": 1}, "expected": "1"},
        {"metadata": {"a": 1}, "forks": "some"},
        {"metadata": {"a": 1}, "since": "yesterday"},
        {"metadata": {"a": 1}, "prefix": "a"},
    ],
)
async def test_an_invalid_filter_is_refused(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    await append(client, turn_of_rounds(1))
    for path in ("/v1/erasures", "/v1/erasures:preview"):
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request"), answer.text
    assert (await client.get("/v1/erasures")).json()["items"] == []


async def test_erasures_are_listed_only_to_their_tenant(
    client: httpx.AsyncClient, server: str, database: Database, application: Database
) -> None:
    await session(client, "a", "ann")
    begun = [await begin_erasure(client, {"metadata": {"user": user}}) for user in ("ann", "bob", "cy")]
    for one in begun:
        await run_erasure(application, one)
    page = (await client.get("/v1/erasures", params={"limit": 2})).json()
    rest = (await client.get("/v1/erasures", params={"cursor": page["next_cursor"]})).json()
    assert [one["id"] for one in (*page["items"], *rest["items"])] == [one["id"] for one in reversed(begun)]
    assert [one["sessions"] for one in (*page["items"], *rest["items"])] == [0, 0, 1]
    secret = (await Tenants(database, None).create_key("other", "k", SCOPES)).secret
    async with httpx.AsyncClient(base_url=server, headers={"Authorization": f"Bearer {secret}"}) as theirs:
        assert (await theirs.get("/v1/erasures")).json()["items"] == []
        for path in ("", "/sessions"):
            assert (await theirs.get(f"/v1/erasures/{begun[0]['id']}{path}")).status_code == 404


async def test_only_sessions_with_exactly_the_named_values_are_found(client: httpx.AsyncClient) -> None:
    for name, metadata in {
        "ann": {"user": {"id": 5, "team": "x"}, "tags": ["a", "b"]},
        "bob": {"user": {"id": 6, "team": "x"}, "tags": ["a"]},
        "true": {"user": {"id": True}, "tags": ["a", {"b": 1}]},
        "text": {"user": "5"},
    }.items():
        assert (await client.put(f"/v1/sessions/{name}", json={"metadata": metadata})).status_code == 201
    for metadata, found in (
        ({"user": {"id": 5}}, {"ann"}),
        ({"user": {"id": 5.0}}, {"ann"}),
        ({"user": {"team": "x"}}, {"ann", "bob"}),
        ({"user": {"team": "x", "id": None}}, set()),
        ({"user": {"id": True}}, {"true"}),
        ({"user": "5"}, {"text"}),
        ({"tags": ["a"]}, {"bob"}),
        ({"tags": ["b", "a"]}, set()),
        ({"tags": ["a", {"b": 1}]}, {"true"}),
    ):
        preview = (await client.post("/v1/erasures:preview", json={"metadata": metadata})).json()
        assert ({one["id"] for one in preview["items"]}, preview["sessions"]) == (found, len(found)), metadata
    listed = await client.get("/v1/sessions", params={"metadata": '{"tags": ["a"]}'})
    assert {one["id"] for one in listed.json()["items"]} == {"ann", "bob", "true"}


async def test_many_sessions_are_erased_only_with_the_expected_count(
    client: httpx.AsyncClient, application: Database
) -> None:
    puts = [client.put(f"/v1/sessions/s{number}", json=ANN) for number in range(UNEXPECTED_MAX)]
    assert {answer.status_code for answer in await asyncio.gather(*puts)} == {201}
    wrong = await client.post("/v1/erasures", json={**ANN, "expected": 1})
    assert (wrong.status_code, wrong.json()["type"]) == (409, "/problems/erasure-count-conflict")
    assert wrong.json()["sessions"] == UNEXPECTED_MAX
    begun = await begin_erasure(client, ANN, key="few")  # within the limit that needs no expected count
    await client.put("/v1/sessions/more", json=ANN)
    again = await client.post("/v1/erasures", json=ANN, headers={"Idempotency-Key": "few"})
    assert (again.status_code, again.json()["id"]) == (200, begun["id"])
    missing = await client.post("/v1/erasures", json=ANN)
    assert (missing.status_code, missing.json()["sessions"]) == (409, UNEXPECTED_MAX + 1)
    assert [one["id"] for one in (await client.get("/v1/erasures")).json()["items"]] == [begun["id"]]
    preview = (await client.post("/v1/erasures:preview", json=ANN)).json()["sessions"]
    begun = await begin_erasure(client, {**ANN, "expected": preview}, key="all")
    await run_erasure(application, begun)
    assert ((await receipt(client, begun))["sessions"], await session_ids(client)) == (UNEXPECTED_MAX + 1, set())
    again = await client.post("/v1/erasures", json={**ANN, "expected": preview}, headers={"Idempotency-Key": "all"})
    assert (again.status_code, again.json()["state"]) == (200, "done")  # although no session is left to count


async def test_more_sessions_than_a_preview_counts_are_erased_only_with_their_exact_count(
    client: httpx.AsyncClient, application: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.wings.retention.erasures.PAGE", 2)
    monkeypatch.setattr("app.wings.retention.erasures.PREVIEWED_MAX", 4)
    for number in range(9):
        assert (await client.put(f"/v1/sessions/s{number}", json=ANN)).status_code == 201
    preview = (await client.post("/v1/erasures:preview", json=ANN)).json()
    assert (preview["sessions"], preview["more"]) == (4, True)
    refused = await client.post("/v1/erasures", json={**ANN, "expected": preview["sessions"]})
    assert (refused.status_code, refused.json()["sessions"]) == (409, 9)
    await run_erasure(application, await begin_erasure(client, {**ANN, "expected": 9}))
    assert await session_ids(client) == set()


@pytest.mark.parametrize("asked", ["metadata", "model"])
async def test_a_session_is_found_by_the_settings_of_its_current_line(
    client: httpx.AsyncClient, application: Database, database: Database, asked: str
) -> None:
    """Metadata stored only on the line's row is found too, as earlier versions stored it after a rewind."""
    for name in ("a", "b"):
        await append(client, turn_of_rounds(2), sid=name)
        assert (await client.post(f"/v1/sessions/{name}/rewind", json={"to": 1})).status_code == 200
    body: dict[str, Any] = {**ANN, "model": "gpt-5"}
    assert (await client.put("/v1/sessions/a", json=body)).status_code == 200
    await database.execute(
        "UPDATE sessions SET metadata = '{}' WHERE session_id = :key", key=session_key(DEFAULT_TENANT, "a")
    )
    params = {"metadata": json.dumps(ANN["metadata"]), "model": "gpt-5"}
    listed = await client.get("/v1/sessions", params={asked: params[asked]})
    assert [one["id"] for one in listed.json()["items"]] == ["a"]
    begun = await begin_erasure(client, {**ANN, asked: body[asked]})
    await run_erasure(application, begun)
    assert ((await receipt(client, begun))["sessions"], await session_ids(client)) == (1, {"b"})


async def test_pages_of_a_filtered_list_miss_nothing(client: httpx.AsyncClient) -> None:
    """Sessions with further lines are checked one by one, so pages of them are shorter."""
    for number in range(9):
        await append(client, turn_of_rounds(1), sid=f"s{number}")
        assert (await client.post(f"/v1/sessions/s{number}/rewind", json={"to": 1})).status_code == 200
        user = "ann" if number % 3 == 0 else "bob"
        assert (await client.put(f"/v1/sessions/s{number}", json={"metadata": {"user": user}})).status_code == 200
    found: list[str] = []
    params: dict[str, Any] = {"metadata": json.dumps(ANN["metadata"]), "limit": 1}
    while True:
        page = (await client.get("/v1/sessions", params=params)).json()
        found += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]
    assert found == ["s6", "s3", "s0"]
