"""Contexts of logs long enough to be loaded in pages."""

import re

import httpx

from app.store.view_reads import EVENTS_PER_READ
from tests.contract.contexts.test_context import append, context

ROUNDS = EVENTS_PER_READ + 300


async def test_a_long_tail_is_shown_whole_and_in_order(client: httpx.AsyncClient) -> None:
    """The pages contain hidden, pinned and redacted events, in a session and in a fork that shares them."""
    for first in range(0, 2 * ROUNDS, 920):
        numbers = range(first, min(first + 920, 2 * ROUNDS))
        await append(client, [{"type": "user.message", "content": f"<{n}>"} for n in numbers])
    hides = {"hide": [{"seq": 100, "replacement": "<hidden>"}], "pin": [200], "force": True}
    assert (await client.patch("/v1/sessions/s/visibility", json=hides)).status_code == 200
    assert (await client.delete("/v1/sessions/s/events/300")).status_code == 204
    forked = await client.post("/v1/sessions/s/fork", json={"id": "f", "at": 2 * ROUNDS})
    assert forked.status_code == 201, forked.text
    await append(client, [{"type": "user.message", "content": "<last>"}], sid="f")
    for sid in ("s", "f"):
        body = await context(client, sid, max_tokens=1_000_000, format="openai")
        text = "".join(
            part["text"] if isinstance(part, dict) else part
            for message in body["request"]["messages"]
            for part in message["content"]
        )
        expected = [f"<{number}>" for number in range(2 * ROUNDS)]
        expected[99] = "<hidden>"
        del expected[299]
        assert re.findall("<[a-z0-9]+>", text)[: len(expected)] == expected
