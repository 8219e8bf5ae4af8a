"""Over HTTP: a session is erased while it is used; nothing of it stays, and nobody is told of a failure of ours."""

import asyncio
from typing import Any

import httpx
import pytest

from app.store.engine import Database
from tests.contract.test_context import append, rounds

SESSIONS = 40
INJECTED = {"injections": [{"name": "secret", "content": "only for this call"}]}


@pytest.mark.slow
async def test_nothing_stays_of_a_session_that_is_erased_while_contexts_are_asked_for(
    client: httpx.AsyncClient, database: Database
) -> None:
    names = [f"s{number}" for number in range(SESSIONS)]
    statuses = await asyncio.gather(*(erased_in_use(client, name, number) for number, name in enumerate(names)))
    assert {status for found in statuses for status in found} <= {200, 204, 404, 409}
    assert not await database.fetch("SELECT FROM model_calls WHERE session_id NOT IN (SELECT session_id FROM sessions)")
    for name in names:
        assert (await client.get(f"/v1/sessions/{name}/calls")).status_code == 404
        await append(client, rounds(1), sid=name)
        assert (await client.get(f"/v1/sessions/{name}/calls")).json()["items"] == []


async def erased_in_use(client: httpx.AsyncClient, name: str, number: int) -> list[int]:
    """Four ways to use a session, each over and over until it is gone; the statuses that were answered."""
    for turn in range(3):
        await append(client, rounds(1, first=turn), sid=name)
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
