"""An API process under the largest requests: small ones do not wait for them."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import Commands

pytestmark = [pytest.mark.long, pytest.mark.wing("recall")]

EVENTS = 40_000
BATCH = 1_000
LONG_SECONDS = 0.5
"""Minimum duration of a request that tests whether it delays others."""
SHARE_MAX = 0.1
"""Permitted wait of others, as a share of a long request's time. Planning on the event loop would be all of it."""
POLLER = """
import sys, threading, time, httpx
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
worst = 0.0
with httpx.Client(base_url=sys.argv[1], timeout=60) as client:
    client.get("/healthz")
    print("ready", flush=True)
    while not done.is_set():
        begun = time.perf_counter()
        client.get("/healthz").raise_for_status()
        worst = max(worst, time.perf_counter() - begun)
print(worst)
"""


async def test_short_requests_do_not_wait_for_long_ones(commands: Commands, database_url: str) -> None:
    api = await commands.start("api", DATABASE_URL=database_url, LOG_LEVEL="error")
    url = await api.url()
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await client.put("/v1/sessions/s", json={"policy": {"summarize": {"enabled": False}}})
        for first in range(0, EVENTS, BATCH):
            await append(client, [event for number in range(first, first + BATCH, 4) for event in turn_of(number)])

        def context(window: int) -> Callable[[], Awaitable[httpx.Response]]:
            asked = {"max_tokens": window, "view": f"v{window}", "format": "openai"}
            return lambda: client.post("/v1/sessions/s/context", json=asked)

        waited = {
            "pressed": await longest_wait(url, context(100_000)),
            "a million tokens": await longest_wait(url, context(1_000_000)),
            "coverage": await longest_wait(
                url, lambda: client.get("/v1/sessions/s/coverage", params={"view": "v100000"})
            ),
        }
        await append(client, [{"type": "tool.call", "call_id": "b", "tool": "read", "arguments": {}}])
        await append(client, [{"type": "tool.result", "call_id": "b", "content": "line of output " * 600_000}])
        waited["a long result"] = await longest_wait(url, context(100_000))
        waited["recall"] = await longest_wait(
            url, lambda: client.post("/v1/sessions/s/recall", json={"query": "line 77"})
        )
    long = {name: wait / took for name, (wait, took) in waited.items() if took >= LONG_SECONDS}
    assert long
    assert {name: share for name, share in long.items() if share > SHARE_MAX} == {}, waited


async def longest_wait(url: str, ask: Callable[[], Awaitable[httpx.Response]]) -> tuple[float, float]:
    """Return the longest wait of another process's probe during a request, and the request's time, in seconds."""
    pipe = asyncio.subprocess.PIPE
    poller = await asyncio.create_subprocess_exec(sys.executable, "-c", POLLER, url, stdin=pipe, stdout=pipe)
    assert poller.stdout is not None
    assert await poller.stdout.readline() == b"ready\n"
    begun = time.perf_counter()
    answer = await ask()
    took = time.perf_counter() - begun
    assert answer.status_code == 200, answer.text[:1_000]
    printed, _ = await poller.communicate(b"")
    return float(printed), took


async def append(client: httpx.AsyncClient, events: list[dict[str, Any]]) -> None:
    answer = await client.post("/v1/sessions/s/events", json={"events": events})
    assert answer.status_code == 201, answer.text


def turn_of(number: int) -> list[dict[str, Any]]:
    """Return a turn of four events."""
    call_id = f"c{number}"
    return [
        {"type": "user.message", "content": f"question {number} of many"},
        {"type": "tool.call", "call_id": call_id, "tool": "read", "arguments": {"path": f"/src/f{number}.py"}},
        {"type": "tool.result", "call_id": call_id, "content": f"line {number} of it\n" * 3},
        {"type": "assistant.message", "content": f"Answer {number}."},
    ]
