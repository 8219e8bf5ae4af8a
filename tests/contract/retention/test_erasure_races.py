"""Erasure of a session in use: nothing of it stays, and no request gets a server error."""

import asyncio
from typing import Any

import httpx
import pytest

from app.store import deletion
from app.store.engine import Database, acting_for
from app.tenants import DEFAULT_TENANT
from tests.contract.contexts.test_context import append, turn_of_rounds
from tests.support.waiting import count_waiting

SESSIONS = 40
SECONDS_MAX = 20
MESSAGES = {"format": "openai", "messages": [{"role": "user", "content": "go"}]}
REQUESTS: list[Any] = [
    ("PUT", "", {"metadata": {"user": "ann"}}),
    ("POST", "/events", {"events": [{"type": "user.message", "content": "go"}]}),
    ("POST", "/messages", MESSAGES),
    ("POST", "/context", {"view": "new"}),
    ("POST", "/context", {"messages": MESSAGES["messages"]}),
    pytest.param("POST", "/context:preview", {}, marks=pytest.mark.wing("compare")),
    ("POST", "/compactions", {}),
    ("POST", "/compactions", {"wait_ms": 100}),
    ("POST", "/compactions/{run}:retry", None),
    ("POST", "/calls/{call}/outcome", {"usage": {"input_tokens": 10}}),
    pytest.param("POST", "/recall", {"query": "question"}, marks=pytest.mark.wing("recall")),
    ("PATCH", "/visibility", {"hide": [{"seq": 2}]}),
    ("PUT", "/layers/sources", {"content": "text"}),
    ("DELETE", "/layers/sources", None),
    ("POST", "/turns/end", {}),
    ("POST", "/rewind", {"to": 1}),
    ("POST", "/fork", {"id": "f"}),
    ("DELETE", "/events/1", None),
    ("DELETE", "", None),
]
INJECTED = {"injections": [{"name": "secret", "content": "only for this call"}]}


@pytest.mark.slow
@pytest.mark.wing("audit")
async def test_an_erasure_during_context_requests_leaves_no_record(
    client: httpx.AsyncClient, database: Database
) -> None:
    names = [f"s{number}" for number in range(SESSIONS)]
    statuses = await asyncio.gather(*(erase_while_used(client, name, number) for number, name in enumerate(names)))
    assert {status for found in statuses for status in found} <= {200, 204, 404, 409}
    assert not await database.fetch("SELECT FROM model_calls WHERE session_id NOT IN (SELECT session_id FROM sessions)")
    for name in names:
        assert (await client.get(f"/v1/sessions/{name}/calls")).status_code == 404
        await append(client, turn_of_rounds(1), sid=name)
        assert (await client.get(f"/v1/sessions/{name}/calls")).json()["items"] == []


async def erase_while_used(client: httpx.AsyncClient, name: str, number: int) -> list[int]:
    """Use a session in three ways and erase it meanwhile; return the statuses of all requests."""
    for turn in range(3):
        await append(client, turn_of_rounds(1, first=turn), sid=name)
    gone = asyncio.Event()
    answered = asyncio.Semaphore(0)
    found: list[int] = []

    async def using(path: str, body: dict[str, Any]) -> None:
        for _ in range(100):
            answer = await client.post(f"/v1/sessions/{name}/{path}", json=body)
            found.append(answer.status_code)
            answered.release()
            if gone.is_set():
                return

    async def erasing() -> None:
        for _ in range(number % 5 + 1):
            await answered.acquire()
        found.append((await client.delete(f"/v1/sessions/{name}")).status_code)
        gone.set()

    await asyncio.gather(
        using("context", {"max_tokens": 6_000, **INJECTED}),
        using("context", {"max_tokens": 6_000 + number, "view": "other"}),
        using("context", {"max_tokens": 6_000, "at": 2}),
        erasing(),
    )
    return found


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_a_request_during_an_erasure_gets_no_server_error(
    client: httpx.AsyncClient,
    application: Database,
    database: Database,
    method: str,
    path: str,
    body: Any,
    key: str | None,
) -> None:
    """The session exists when the request begins and is gone when it writes."""
    await append(client, turn_of_rounds(1))
    call = (await client.post("/v1/sessions/s/context", json={})).json()["call_id"]
    run = (await client.post("/v1/sessions/s/compactions", json={})).json()["id"]
    url = "/v1/sessions/s" + path.format(call=call, run=run)
    headers = {} if key is None else {"Idempotency-Key": key}
    with acting_for(DEFAULT_TENANT):
        async with application.transaction() as tx:
            names = await deletion.lock_family(tx, DEFAULT_TENANT, "s", lines=True)
            await deletion.delete_locked(tx, DEFAULT_TENANT, names)
            asking = asyncio.create_task(client.request(method, url, json=body, headers=headers))
            async with asyncio.timeout(SECONDS_MAX):
                while not asking.done() and not await count_waiting(database):
                    pass
    answer = await asking
    assert answer.status_code in (200, 201, 202, 204, 404, 409), answer.text
