"""Requests that are repeated under their idempotency key."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.contract.test_lines import ask, say
from tests.contract.test_reconcile import BEGUN, user

Json = dict[str, Any]


async def post(http: httpx.AsyncClient, path: str, body: Json, key: str = "k") -> httpx.Response:
    return await http.post(f"/v1/sessions/{path}", json=body, headers={"Idempotency-Key": key})


async def conflict(http: httpx.AsyncClient, path: str, body: Json) -> None:
    answer = await post(http, path, body)
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/idempotency-conflict")


@pytest.mark.parametrize("body", [{"format": "anthropic"}, {"messages": BEGUN, "max_tokens": 9_000}])
async def test_a_context_is_given_again_byte_for_byte(client: httpx.AsyncClient, body: Json) -> None:
    await say(client, "s", "Where?")
    first = await post(client, "s/context", body)
    assert first.status_code == 200, first.text
    await say(client, "s", "more")
    await ask(client, "POST", "s/context", {"messages": [user("aside")]})
    again = await post(client, "s/context", body)
    assert again.content == first.content
    assert len((await ask(client, "GET", f"{first.json()['line']}/calls"))["items"]) == 1
    await conflict(client, "s/context", {**body, "recall": True})
    await conflict(client, "s/rewind", {"to": 1})
    other = await post(client, "s/context", body, "another")
    assert other.json()["call_id"] != first.json()["call_id"]


async def test_at_once_all_get_one_answer(client: httpx.AsyncClient) -> None:
    await say(client, "s", "Where?")
    answers = await asyncio.gather(*(post(client, "s/context", {"messages": BEGUN}) for _ in range(4)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert (await ask(client, "GET", "s"))["head"] == 6


async def test_a_rewind_and_a_fork_are_made_once(client: httpx.AsyncClient) -> None:
    await say(client, "s", "one", "two")
    first = await post(client, "s/rewind", {"to": 1})
    await say(client, "s", "other", "and on")
    again = await post(client, "s/rewind", {"to": 1})
    assert (again.status_code, again.json()) == (200, first.json())
    assert (await ask(client, "GET", "s"))["head"] == 3
    await conflict(client, "s/rewind", {"to": 2})
    forked = await post(client, "s/fork", {"id": "f"}, "f")
    await say(client, "f", "mine")
    again = await post(client, "s/fork", {"id": "f"}, "f")
    assert (forked.status_code, again.status_code, again.json()) == (201, 200, forked.json())


async def test_an_outcome_is_answered_again(client: httpx.AsyncClient) -> None:
    await say(client, "s", "one")
    call_id = (await ask(client, "GET", "s/context"))["call_id"]
    path = f"s/calls/{call_id}/outcome"
    error = {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}
    first = await post(client, path, error)
    assert first.json()["next"]["path"] == "/v1/sessions/s/context"
    assert (await post(client, path, error)).json() == first.json()
    await conflict(client, path, {"usage": {"input_tokens": 5}})
