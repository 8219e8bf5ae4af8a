"""Requests repeated under their idempotency key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.store.engine import Database
from tests.conftest import Servers
from tests.contract.events.test_reconcile import CONVERSATION, user
from tests.contract.lines.test_lines import append_messages, ask

Json = dict[str, Any]
RACING = 12
CONTEXTS: list[Json] = [{"format": "anthropic"}, {"messages": CONVERSATION, "max_tokens": 9_000}]


async def post(http: httpx.AsyncClient, path: str, body: Json, key: str = "k") -> httpx.Response:
    return await http.post(f"/v1/sessions/{path}", json=body, headers={"Idempotency-Key": key})


async def conflict(http: httpx.AsyncClient, path: str, body: Json) -> None:
    answer = await post(http, path, body)
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/idempotency-conflict")


@pytest.mark.wing("audit")
@pytest.mark.parametrize("body", CONTEXTS)
async def test_a_repeated_context_is_returned_byte_for_byte(client: httpx.AsyncClient, body: Json) -> None:
    await append_messages(client, "s", "Where?")
    first = await post(client, "s/context", body)
    assert first.status_code == 200, first.text
    await append_messages(client, "s", "more")
    await ask(client, "POST", "s/context", {"messages": [user("aside")]})
    again = await post(client, "s/context", body)
    assert again.content == first.content
    assert len((await ask(client, "GET", f"{first.json()['line']}/calls"))["items"]) == 1
    await conflict(client, "s/context", {**body, "recall": True})
    await conflict(client, "s/rewind", {"to": 1})
    other = await post(client, "s/context", body, "another")
    assert other.json()["call_id"] != first.json()["call_id"]


async def test_concurrent_repeats_get_one_response(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "Where?")
    answers = await asyncio.gather(*(post(client, "s/context", {"messages": CONVERSATION}) for _ in range(4)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert (await ask(client, "GET", "s"))["head"] == 6


async def test_a_rewind_and_a_fork_are_made_once(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "one", "two")
    first = await post(client, "s/rewind", {"to": 1})
    await append_messages(client, "s", "other", "and on")
    again = await post(client, "s/rewind", {"to": 1})
    assert (again.status_code, again.json()) == (200, first.json())
    assert (await ask(client, "GET", "s"))["head"] == 3
    await conflict(client, "s/rewind", {"to": 2})
    forked = await post(client, "s/fork", {"id": "f"}, "f")
    await append_messages(client, "f", "mine")
    again = await post(client, "s/fork", {"id": "f"}, "f")
    assert (forked.status_code, again.status_code, again.json()) == (201, 200, forked.json())


async def test_a_repeated_outcome_gets_the_first_response(client: httpx.AsyncClient) -> None:
    await append_messages(client, "s", "one")
    call_id = (await ask(client, "GET", "s/context"))["call_id"]
    path = f"s/calls/{call_id}/outcome"
    error = {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}
    first = await post(client, path, error)
    assert first.json()["next"]["path"] == "/v1/sessions/s/context"
    assert (await post(client, path, error)).json() == first.json()
    await conflict(client, path, {"usage": {"input_tokens": 5}})


@pytest.mark.parametrize("operation", ["fork", "rewind", "outcome", "warming"])
async def test_a_response_stored_by_an_earlier_release_is_returned_as_it_is(
    client: httpx.AsyncClient, database: Database, operation: str
) -> None:
    await append_messages(client, "s", "one", "two")
    call_id = (await ask(client, "POST", "s/context", {"format": "anthropic"}))["call_id"]
    path, body, field, status = {
        "fork": ("s/fork", {"id": "f", "at": 1}, "head", 200),
        "rewind": ("s/rewind", {"to": 1}, "head", 200),
        "outcome": (f"s/calls/{call_id}/outcome", {"usage": {"input_tokens": 9}}, "action", 200),
        "warming": (f"s/calls/{call_id}/warmings", {"usage": {"input_tokens": 9}}, "billed", 201),
    }[operation]
    first = await post(client, path, body)
    assert first.is_success, first.text
    removed = "UPDATE appends SET answer = (answer::jsonb - :field::text)::json WHERE key = 'k'"
    await database.execute(removed, field=field)
    again = await post(client, path, body)
    expected = first.json()
    del expected[field]
    assert (again.status_code, again.json()) == (status, expected)
    assert again.headers["content-type"] == first.headers["content-type"]


async def race(servers: Servers, path: str, body: Json) -> list[httpx.Response]:
    """Send one request under one key to both servers, many times concurrently; return the responses."""
    return await asyncio.gather(*(post(servers[number % 2], path, body) for number in range(RACING)))


@asynccontextmanager
async def key_not_stored(database: Database, key: str = "k") -> AsyncIterator[None]:
    """Make the database refuse to store an idempotency key until the block ends, as if the server died before that."""
    await database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$"
    )
    await database.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON appends FOR EACH ROW "
        f"WHEN (NEW.key = '{key}') EXECUTE FUNCTION refuse()"
    )
    yield
    await database.execute("DROP TRIGGER refuse ON appends")
    await database.execute("DROP FUNCTION refuse")


async def calls(http: httpx.AsyncClient) -> list[Json]:
    found: list[Json] = (await ask(http, "GET", "s/calls"))["items"]
    return found


@pytest.mark.wing("audit")
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("body", CONTEXTS)
async def test_racing_contexts_under_one_key_record_one_call(servers: Servers, body: Json, held: bool) -> None:
    http = servers[0]
    await append_messages(http, "s", "Where?", "There.")
    if held:  # both servers cache the view and record their call without reloading it
        for server in servers:
            await ask(server, "POST", "s/context", body)
    before = len(await calls(http))
    epochs = len((await ask(http, "GET", "s/epochs"))["items"])
    answers = await race(servers, "s/context", body)
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    assert len({answer.content for answer in answers}) == 1
    assert len(await calls(http)) == before + 1
    assert len((await ask(http, "GET", "s/epochs"))["items"]) <= epochs + 1
    newest = (await calls(http))[0]
    assert (newest["call_id"], newest["outcome"]) == (answers[0].json()["call_id"], None)


async def test_racing_contexts_of_a_clients_messages_list_what_was_appended(servers: Servers) -> None:
    answers = await race(servers, "s/context", {"messages": CONVERSATION})
    assert len({answer.content for answer in answers}) == 1
    assert [one["seq"] for one in answers[0].json()["appended"]] == list(
        range(1, (await ask(servers[0], "GET", "s"))["head"] + 1)
    )


@pytest.mark.wing("audit")
@pytest.mark.parametrize("body", CONTEXTS)
async def test_a_context_whose_key_is_not_stored_is_not_recorded(
    servers: Servers, database: Database, body: Json
) -> None:
    await append_messages(servers[0], "s", "Where?")
    async with key_not_stored(database):
        assert (await post(servers[0], "s/context", body)).status_code == 500
    assert await calls(servers[0]) == []
    first, again = [await post(server, "s/context", body) for server in servers]
    assert first.status_code == 200 and first.content == again.content
    assert len(await calls(servers[0])) == 1


@pytest.mark.wing("audit")
async def test_a_repeated_context_lists_what_its_failed_attempt_appended(servers: Servers, database: Database) -> None:
    first, other = servers
    async with key_not_stored(database):  # as if the server died between the append and the record
        assert (await post(first, "s/context", {"messages": CONVERSATION})).status_code == 500
    head = (await ask(first, "GET", "s"))["head"]
    assert await calls(first) == []
    await append_messages(first, "s", "more")
    answer = (await post(other, "s/context", {"messages": CONVERSATION})).json()
    assert (answer["line"], answer["head"]) == ("s@line.1", head)
    assert [one["seq"] for one in answer["appended"]] == list(range(1, head + 1))
    assert [seq for one in answer["plan"] for seq in one["seqs"]] == list(range(1, head + 1))
    assert len((await ask(first, "GET", "s/lines"))["items"]) == 1
    await conflict(other, "s/context", {"messages": CONVERSATION, "recall": True})


async def test_racing_rewinds_and_forks_are_made_once(servers: Servers) -> None:
    http = servers[0]
    await append_messages(http, "s", "one", "two")
    rewound = await race(servers, "s/rewind", {"to": 1})
    assert {answer.status_code for answer in rewound} == {200}, [answer.text for answer in rewound]
    assert len({answer.content for answer in rewound}) == 1
    assert len((await ask(http, "GET", "s/lines"))["items"]) == 2
    forked = await asyncio.gather(*(post(servers[number % 2], "s/fork", {"id": "f"}, "f") for number in range(RACING)))
    assert {answer.status_code for answer in forked} == {200, 201}, [answer.text for answer in forked]
    assert [answer.status_code for answer in forked].count(201) == 1
    assert len({answer.content for answer in forked}) == 1


async def test_a_rewind_and_a_fork_whose_key_is_not_stored_are_not_made(
    client: httpx.AsyncClient, database: Database
) -> None:
    await append_messages(client, "s", "one", "two")
    async with key_not_stored(database):
        assert (await post(client, "s/rewind", {"to": 1})).status_code == 500
        assert (await post(client, "s/fork", {"id": "f"})).status_code == 500
    assert len((await ask(client, "GET", "s/lines"))["items"]) == 1
    assert (await client.get("/v1/sessions/f")).status_code == 404
    assert (await post(client, "s/rewind", {"to": 1})).json()["head"] == 1
    assert (await post(client, "s/fork", {"id": "f"}, "f")).status_code == 201


async def test_racing_outcomes_get_one_response(servers: Servers) -> None:
    await append_messages(servers[0], "s", "one")
    call_id = (await ask(servers[0], "GET", "s/context"))["call_id"]
    error = {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}
    answers = await race(servers, f"s/calls/{call_id}/outcome", error)
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    assert len({answer.content for answer in answers}) == 1
