"""Turns over HTTP: explicit or implied, listed, and ended."""

import asyncio
from typing import Any

import httpx
import pytest

from app.store.engine import Database
from tests.conformance.agent import Agent, Json, request_text
from tests.support.sharing import Shared

END = "/v1/sessions/s/turns/end"


async def list_turns(client: httpx.AsyncClient, **asked: Any) -> list[Json]:
    answer = await client.get("/v1/sessions/s/turns", params=asked)
    answer.raise_for_status()
    found: list[Json] = answer.json()["items"]
    return found


async def end(client: httpx.AsyncClient, status: int = 201, key: str | None = None, **body: Any) -> Json:
    answer = await client.post(END, json=body, headers={"Idempotency-Key": key} if key else {})
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    return found


async def test_turns_are_listed_with_their_first_and_last_seq(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.post({"type": "system.prompt", "content": "be brief"}, {"type": "user.message", "content": "one"})
    await agent.assistant("first")
    await agent.user("two")
    rows = await list_turns(client)
    assert [(row["turn"], row["from_seq"], row["to_seq"], row["events"]) for row in rows] == [
        (1, 2, 3, 2),
        (2, 4, 4, 1),
    ]
    log = await agent.log()
    assert [row["tokens"] for row in rows] == [log[1]["tokens"] + log[2]["tokens"], log[3]["tokens"]]
    assert [row["state"] for row in rows] == ["ended", "running"]


async def test_the_list_continues_from_its_cursor(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    for number in range(7):
        await agent.user(f"{number}")
        await agent.assistant()
    whole, pages, cursor = await list_turns(client), [], None
    while True:
        answer = (
            await client.get("/v1/sessions/s/turns", params={"limit": 3} | ({"cursor": cursor} if cursor else {}))
        ).json()
        pages += answer["items"]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    assert pages == whole
    assert [row["turn"] for row in whole] == list(range(1, 8))
    assert (await client.get("/v1/sessions/none/turns")).status_code == 404
    assert (await client.get("/v1/sessions/s/turns", params={"cursor": "WyJ4Il0"})).status_code == 422


async def test_another_tenants_turns_are_not_found(client: httpx.AsyncClient, shared: Shared) -> None:
    """Nor can the other tenant tell that the session exists; a session of its own by that name has its own turns."""
    await Agent(client).user("one")
    await Agent(client).user("two")
    mine = await list_turns(client)
    key = shared.key
    await shared.next_tenant()
    foreign, unknown = [await client.get(f"/v1/sessions/{sid}/turns") for sid in ("s", "none")]
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json()["type"] == unknown.json()["type"] == "/problems/not-found"
    await Agent(client).user("theirs")
    assert [row["turn"] for row in await list_turns(client)] == [1]
    again = await client.get("/v1/sessions/s/turns", headers={"Authorization": f"Bearer {key}"})
    assert again.json()["items"] == mine


async def test_a_turn_left_open_is_interrupted_by_the_next(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.post({"type": "turn.start", "turn_id": "a"}, {"type": "user.message", "content": "one"})
    await agent.post({"type": "turn.start", "turn_id": "b"}, {"type": "user.message", "content": "two"})
    assert [(row["turn_id"], row["state"]) for row in await list_turns(client)] == [
        ("a", "interrupted"),
        ("b", "running"),
    ]
    await agent.user("three")  # a user message closes it too
    assert [row["state"] for row in await list_turns(client)] == ["interrupted", "interrupted", "running"]
    await agent.post({"type": "turn.end"})
    await agent.post({"type": "turn.start", "turn_id": "d"}, {"type": "turn.end", "turn_id": "d"})
    rows = await list_turns(client)
    assert [row["state"] for row in rows] == ["interrupted", "interrupted", "ended", "ended"]
    assert (rows[-1]["from_seq"], rows[-1]["to_seq"]) == (7, 8)


@pytest.mark.wing("audit")
async def test_the_announce_layer_of_an_interrupted_turn_is_discarded(client: httpx.AsyncClient) -> None:
    """It described work in progress that has stopped; calls that showed it still render with it."""
    agent = Agent(client)
    await agent.post({"type": "turn.start"}, {"type": "user.message", "content": "one"})
    await client.put("/v1/sessions/s/layers/announce", json={"content": "STEP 3 OF 5"})
    seen = await agent.context()
    assert "STEP 3 OF 5" in request_text(seen)
    await agent.post({"type": "turn.start"}, {"type": "user.message", "content": "two"})
    assert "STEP 3 OF 5" not in request_text(await agent.context())
    assert (await client.get("/v1/sessions/s/layers")).json() == {"sources": None, "announce": None}
    await end(client)
    assert "announce" not in [event["type"] for event in await agent.log()]
    again = (await client.get(f"/v1/sessions/s/calls/{seen['call_id']}/context")).json()
    assert (again["reproduced"], again["request"]) == (True, seen["request"])


async def test_ending_a_turn_persists_its_announce_and_clears_the_layers(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.post({"type": "turn.start", "turn_id": "t"}, {"type": "user.message", "content": "one"})
    await client.put("/v1/sessions/s/layers/sources", json={"content": "SOURCE"})
    await client.put("/v1/sessions/s/layers/announce", json={"content": "DONE: all of it"})
    done = await end(client, turn_id="t")
    assert (done["turn"], done["turn_id"], done["ended"], done["head"]) == (1, "t", True, 4)
    assert done["announce"] == {"seq": 3, "tokens": done["events"][0]["tokens"]}
    assert done["pressure"]["level"] == "none"
    last = (await agent.log())[2:]
    assert [(event["type"], event["turn_id"], event["turn"]) for event in last] == [
        ("announce", "t", 1),
        ("turn.end", "t", 1),
    ]
    assert last[0]["content"] == "DONE: all of it"
    assert (await client.get("/v1/sessions/s/layers")).json() == {"sources": None, "announce": None}
    seen = request_text(await agent.context())
    assert seen.count("DONE: all of it") == 1
    assert "SOURCE" not in seen


async def test_ending_an_ended_turn_changes_nothing(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.user("one")
    first = await end(client)
    assert (first["ended"], first["announce"], first["head"]) == (True, None, 2)
    await client.put("/v1/sessions/s/layers/announce", json={"content": "for the next one"})
    again = await end(client, 200)
    assert (again["ended"], again["events"], again["head"]) == (False, [], 2)
    assert len(await agent.log()) == 2
    assert (await client.get("/v1/sessions/s/layers")).json()["announce"]["content"] == "for the next one"
    assert [row["state"] for row in await list_turns(client)] == ["ended"]


async def test_the_turn_id_of_another_turn_is_refused(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    assert (await client.post(END, json={})).status_code == 404
    await agent.post({"type": "system.prompt", "content": "be brief"})
    assert (await end(client, 409))["type"] == "/problems/conflict"
    await agent.post({"type": "turn.start", "turn_id": "a"}, {"type": "turn.start", "turn_id": "b"})
    refused = await end(client, 409, turn_id="a")
    assert (refused["type"], refused["turn"], refused["turn_id"]) == ("/problems/conflict", 2, "b")
    assert (await client.post(END, json={"turn": 2})).status_code == 422
    assert len(await agent.log()) == 3
    assert (await end(client, turn_id="b"))["ended"] is True


async def test_a_repeated_key_gets_the_first_response(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.post({"type": "turn.start", "turn_id": "t"}, {"type": "user.message", "content": "one"})
    await client.put("/v1/sessions/s/layers/announce", json={"content": "DONE"})
    first = await end(client, key="k", turn_id="t")
    await agent.post({"type": "turn.start", "turn_id": "u"}, {"type": "user.message", "content": "two"})
    assert await end(client, 200, key="k", turn_id="t") == first
    assert (await end(client, 409, key="k"))["type"] == "/problems/idempotency-conflict"
    assert [row["state"] for row in await list_turns(client)] == ["ended", "running"]


async def test_a_repeated_key_of_a_request_that_changed_nothing_ends_no_later_turn(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.user("one")
    await end(client)
    nothing = await end(client, 200, key="k")
    await agent.user("two")
    assert await end(client, 200, key="k") == nothing
    assert [row["state"] for row in await list_turns(client)] == ["ended", "running"]


async def test_concurrent_requests_end_a_turn_once(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.user("one")
    await client.put("/v1/sessions/s/layers/announce", json={"content": "DONE"})
    answers = await asyncio.gather(*(client.post(END, json={}) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert [event["type"] for event in await agent.log()] == ["user.message", "announce", "turn.end"]


async def test_the_next_message_after_an_end_begins_a_turn(client: httpx.AsyncClient) -> None:
    """A message that names the ended turn's id begins a new turn too, however the turn was ended."""
    agent = Agent(client)
    await agent.post({"type": "turn.start", "turn_id": "t"}, {"type": "user.message", "content": "one"})
    await agent.post({"type": "user.message", "content": "two", "turn_id": "t"})
    await end(client)
    await agent.post({"type": "user.message", "content": "three", "turn_id": "t"})
    await agent.post({"type": "turn.end", "turn_id": "t"})
    await agent.post({"type": "user.message", "content": "four", "turn_id": "t"})
    assert [event["turn"] for event in await agent.log()] == [1, 1, 1, 1, 2, 2, 3]


async def test_a_sub_agents_instructions_stay_in_its_parents_turn(client: httpx.AsyncClient) -> None:
    """They carry the parent's turn id; a turn.end of the sub-agent's own turn ends nothing."""
    agent = Agent(client)
    await agent.post({"type": "turn.start", "turn_id": "t"}, {"type": "user.message", "content": "ASK THE LEAD"})
    await agent.post({"type": "tool.call", "call_id": "task", "tool": "delegate", "author": "lead"})
    await agent.post(
        {"type": "user.message", "content": "ASK THE SCOUT", "author": "scout", "turn_id": "t"},
        {"type": "tool.call", "call_id": "look", "tool": "read", "author": "scout"},
        {"type": "tool.result", "call_id": "look", "content": "SEEN", "author": "scout"},
        {"type": "turn.end", "turn_id": "scouts-own", "author": "scout"},
    )
    await agent.post({"type": "tool.result", "call_id": "task", "content": "REPORT"})
    [turn] = await list_turns(client)
    assert (turn["state"], turn["events"]) == ("running", 8)
    for authors in (["lead"], ["!scout"]):
        mine = await agent.context(view=f"v{len(authors[0])}", policy={"authors": authors})
        assert "ASK THE SCOUT" not in request_text(mine)
        assert "SEEN" not in request_text(mine)
        assert "ASK THE LEAD" in request_text(mine)
        assert "REPORT" in request_text(mine)
    theirs = request_text(await agent.context(view="scout", policy={"authors": ["scout"]}))
    assert "SEEN" in theirs
    assert "REPORT" not in theirs
    everything = request_text(await agent.context())
    assert all(text in everything for text in ("ASK THE SCOUT", "SEEN", "REPORT"))


@pytest.mark.parametrize("types", [["user.message", "!agent.note"], ["user"], ["!system.prompt"], ["turn.start"]])
async def test_types_must_be_known_and_all_included_or_all_excluded(
    client: httpx.AsyncClient, types: list[str]
) -> None:
    agent = Agent(client)
    await agent.user()
    problem = await agent.context(422, policy={"types": types})
    assert (problem["type"], problem["knob"]) == ("/problems/invalid-policy", "types")


async def test_authors_must_be_all_included_or_all_excluded(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.user()
    problem = await agent.context(422, policy={"authors": ["lead", "!scout"]})
    assert (problem["type"], problem["knob"]) == ("/problems/invalid-policy", "authors")


async def test_a_fork_continues_its_parents_turns(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.post({"type": "turn.start", "turn_id": "a"}, {"type": "user.message", "content": "one"})
    await agent.post({"type": "turn.end"}, {"type": "user.message", "content": "two", "turn_id": "a"})
    await agent.post({"type": "turn.start", "turn_id": "c"})
    answer = await client.post("/v1/sessions/s/fork", json={"id": "f", "at": 4})
    assert answer.status_code == 201, answer.text
    whole, forked = await list_turns(client), (await client.get("/v1/sessions/f/turns")).json()["items"]
    assert forked == [whole[0], {**whole[1], "state": "running"}]
    ended = await client.post("/v1/sessions/f/turns/end", json={"turn_id": "a"})
    assert (ended.status_code, ended.json()["turn"], ended.json()["head"]) == (201, 2, 5)
    await client.put("/v1/sessions/f/layers/sources", json={"content": "x"})
    assert (await client.get("/v1/sessions/s/layers")).json()["sources"] is None
    early = await client.post("/v1/sessions/s/fork", json={"id": "e", "at": 3})
    assert early.status_code == 201
    await Agent(client, "e").post({"type": "user.message", "content": "two", "turn_id": "a"})
    assert [event["turn"] for event in await Agent(client, "e").log()] == [1, 1, 1, 2]


async def test_deleting_a_session_deletes_its_layers(client: httpx.AsyncClient, database: Database) -> None:
    await Agent(client).user()
    (await client.put("/v1/sessions/s/layers/sources", json={"content": "x"})).raise_for_status()
    assert (await client.delete("/v1/sessions/s")).status_code == 204
    assert await database.fetch("SELECT 1 FROM layers") == []
