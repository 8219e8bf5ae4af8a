"""The time an event loop is blocked while summaries of a long session are written on it.

CPU time of the loop's thread is compared with a reference computation of the same run, so that the machine and its load
matter little.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager

import httpx
import pytest

from app.runtime import wiring
from app.runtime.settings import Settings
from app.worker import run
from tests.conformance.agent import Json
from tests.conftest import serving
from tests.support.busy_loop import run_watched
from tests.support.pooler import pooled
from tests.support.processes import palimpsest
from tests.support.queue import worker_queue
from tests.support.requesting import Loopback

ROUNDS = 600
WINDOW = 60_000
EXCEPTIONS = 3
"""The number of longest stretches that are ignored: work done once per process, and garbage collections."""
AGENTS = 2
EVENTS_PER_APPEND = 40
EVENTS_PER_AGENT = 1_600
"""The number of events each agent appends, EVENTS_PER_APPEND per request, with a context after each."""
WORDS = "The build of the parser takes the configuration from src/part_{}.py and writes the result to disk. " * 2


def rounds() -> list[Json]:
    """Return a session several windows long."""
    events: list[Json] = []
    for number in range(ROUNDS):
        text = WORDS.format(number, number)
        events += [
            {"type": "user.message", "content": f"question {number}: {text}"},
            {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": {"path": f"src/{number}.py"}},
            {"type": "tool.result", "call_id": f"c{number}", "content": text},
            {"type": "assistant.message", "content": f"Answer {number}. {text}"},
        ]
    return events


def reference_seconds(events: Sequence[Json]) -> float:
    """Return the CPU seconds to encode and decode all events three times, a fraction of the time to plan with them."""
    before = time.thread_time()
    for _ in range(3):
        assert json.loads(json.dumps(events)) == events
    return time.thread_time() - before


def longest(stretches: Sequence[float]) -> float:
    """Return the longest stretch after the EXCEPTIONS longest."""
    return sorted(stretches, reverse=True)[EXCEPTIONS]


@pytest.fixture
def events() -> list[Json]:
    return rounds()


async def append(http: httpx.AsyncClient, events: Sequence[Json]) -> None:
    for start in range(0, len(events), 1_000):
        answer = await http.post("/v1/sessions/s/events", json={"events": events[start : start + 1_000]})
        assert answer.status_code == 201, answer.text


@asynccontextmanager
async def watched_server(database_url: str, stretches: "Future[list[float]]") -> AsyncIterator[str]:
    """Serve on a watched loop in its own thread and yield the base URL."""
    url: Future[str] = Future()
    loop: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        loop.set_result((asyncio.get_running_loop(), stop))
        async with serving(Settings(), database_url) as base:
            url.set_result(base)
            await stop.wait()

    thread = threading.Thread(target=lambda: stretches.set_result(run_watched(serve())[1]))
    thread.start()
    try:
        yield await asyncio.wrap_future(url)
    finally:
        own, stop = await asyncio.wrap_future(loop)
        own.call_soon_threadsafe(stop.set)
        await asyncio.to_thread(thread.join)


async def test_a_worker_never_blocks_its_loop_for_long(
    client: httpx.AsyncClient, database_url: str, events: list[Json]
) -> None:
    await append(client, events)
    assert (await client.post("/v1/sessions/s/context", json={"max_tokens": WINDOW})).status_code == 200
    assert (await client.post("/v1/sessions/s/compactions", json={})).status_code == 202

    async def work() -> None:
        ending = asyncio.Event()
        async with worker_queue(database_url) as done:
            working = asyncio.create_task(
                run(database_url, ending, wiring.worker_work(pooled(Settings(), database_url)))
            )
            await done()
            ending.set()
            await working

    _, stretches = await asyncio.to_thread(run_watched, work())
    written = (await client.get("/v1/sessions/s/summaries")).json()["items"]
    assert len(written) > 1
    assert longest(stretches) < reference_seconds(events)


async def test_a_server_that_writes_a_summary_never_blocks_its_loop_for_long(
    client: httpx.AsyncClient, database_url: str, events: list[Json]
) -> None:
    await append(client, events)
    stretches: Future[list[float]] = Future()
    async with (
        watched_server(database_url, stretches) as url,
        httpx.AsyncClient(base_url=url, timeout=60, transport=Loopback()) as http,
    ):
        body = {"max_tokens": WINDOW, "wait_ms": 1}
        answer = await http.post("/v1/sessions/s/context", json=body)
        assert answer.status_code == 200, answer.text
        written = (await http.get("/v1/sessions/s/summaries")).json()["items"]
    assert written
    assert longest(stretches.result()) < reference_seconds(events)


async def run_agent(http: httpx.AsyncClient, path: str, events: Sequence[Json]) -> None:
    """Append events in batches and request a context after each, as an agent does."""
    for start in range(0, len(events), EVENTS_PER_APPEND):
        answer = await http.post(f"{path}/events", json={"events": events[start : start + EVENTS_PER_APPEND]})
        assert answer.status_code == 201, answer.text
        answer = await http.post(f"{path}/context", json={"max_tokens": WINDOW})
        assert answer.status_code == 200, answer.text


async def test_a_server_in_use_next_to_a_busy_worker_never_blocks_its_loop_for_long(
    database_url: str, events: list[Json]
) -> None:
    stretches: Future[list[float]] = Future()
    worker = await palimpsest("worker", settings={"DATABASE_URL": database_url})
    async with (
        watched_server(database_url, stretches) as url,
        httpx.AsyncClient(base_url=url, timeout=60, transport=Loopback()) as http,
    ):
        paths = [f"/v1/sessions/s{number}" for number in range(AGENTS)]
        await asyncio.gather(*(run_agent(http, path, events[:EVENTS_PER_AGENT]) for path in paths))
        async with worker_queue(database_url) as done:
            await done()
        for path in paths:
            assert (await http.get(f"{path}/summaries")).json()["items"]
    worker.terminate()
    assert await worker.wait() == 0
    assert longest(stretches.result()) < reference_seconds(events)


async def test_a_huge_layer_never_blocks_the_loop_for_long(database_url: str) -> None:
    content = '{"a":[' + "[]," * 3_000_000 + "[]]}"
    bodies = [json.dumps({"content": content + "!" * number}).encode() for number in range(4)]
    stretches: Future[list[float]] = Future()
    async with (
        watched_server(database_url, stretches) as url,
        httpx.AsyncClient(base_url=url, timeout=60, transport=Loopback()) as http,
    ):
        assert (await http.put("/v1/sessions/s", json={})).status_code == 201
        for body in bodies:
            answer = await http.put(
                "/v1/sessions/s/layers/sources", content=body, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code == 200, answer.text
    before = time.thread_time()
    for _ in range(2):
        json.dumps(content)
    assert longest(stretches.result()) < time.thread_time() - before
