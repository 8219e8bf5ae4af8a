"""`serve` and `api --processes`: each process has its own work, is replaced when it dies, and ends with the command."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.runtime.serve import WORKER_NICENESS
from app.store.engine import Database
from tests.acceptance.conftest import SECONDS_MAX, Commands, processes

pytestmark = pytest.mark.embedded("`serve` is killed, and what it runs")

EVENT = {"type": "user.message", "content": "hello"}
POLICY = {"window_tokens": 12_000, "reserve_tokens": 0}
WORDS = "The build of the parser takes the configuration from its own folder and writes the result to disk. " * 8
TURNS = 60
REQUESTS = 24
CPU_FACTOR = 2


async def wait_until_gone(victims: list[psutil.Process]) -> None:
    _, alive = await asyncio.to_thread(psutil.wait_procs, victims, SECONDS_MAX)
    assert not alive


async def fill_session(http: httpx.AsyncClient, sid: str) -> None:
    """Create a session and append its events."""
    texts = [f"turn {number}: {WORDS}" for number in range(TURNS)]
    types = ("user.message", "assistant.message")
    events = [{"type": kind, "content": text} for text in texts for kind in types]
    assert (await http.put(f"/v1/sessions/{sid}", json={"policy": POLICY})).is_success
    assert (await http.post(f"/v1/sessions/{sid}/events", json={"events": events})).status_code == 201


async def compact(http: httpx.AsyncClient, sid: str) -> str:
    """Compact a session; return the run's final state."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            run = (await http.post(f"/v1/sessions/{sid}/compactions", json={"wait_ms": 10_000})).json()
            if run["state"] not in ("scheduled", "running"):
                return str(run["state"])


async def retry(ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Return the response, retrying while connections to killed processes break."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                return await ask()
            except httpx.TransportError:
                continue


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def test_summaries_are_written_by_a_process_of_their_own_that_is_replaced_when_it_dies(
    commands: Commands,
) -> None:
    serve = await commands.start("serve", WORKER_HEARTBEAT_SECONDS="1")
    async with httpx.AsyncClient(base_url=await serve.url(), timeout=60) as http:
        apis, workers = await processes(serve)
        assert workers[0].nice() == min(19, apis[0].nice() + WORKER_NICENESS)
        for sid in ("first", "second"):
            await fill_session(http, sid)
        before = cpu(apis[0]), cpu(workers[0])
        assert await compact(http, "first") == "succeeded"
        api, worker = cpu(apis[0]) - before[0], cpu(workers[0]) - before[1]
        assert worker > CPU_FACTOR * api
        workers[0].kill()
        await wait_until_gone(workers)
        assert await compact(http, "second") == "succeeded"
        assert (await processes(serve))[0] == apis
    status, errors = await serve.stop()
    assert status == 0
    (line,) = [line for line in errors if "a process has ended; restarting it" in line]
    assert f"pid={workers[0].pid}" in line
    assert "worker" in line
    assert "Killed" in line
    assert "after_seconds=0.2" in line
    await wait_until_gone([*apis, *workers])
    assert commands.postmaster() is None


async def test_an_api_process_that_dies_is_replaced_while_its_postgres_stays(commands: Commands) -> None:
    serve = await commands.start("serve")
    url = await serve.url()
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        assert (await http.post("/v1/sessions/s/events", json={"events": [EVENT]})).status_code == 201
        postmaster = commands.postmaster()
        apis, _ = await processes(serve)
        apis[0].kill()
        answer = await retry(lambda: http.get("/v1/sessions/s/events"))
        assert [event["seq"] for event in answer.json()["items"]] == [1]
        assert (await processes(serve))[0] != apis
    assert commands.postmaster() == postmaster
    assert await serve.line() == f"palimpsest: serving on {url}"
    assert (await serve.stop())[0] == 0


async def test_only_postgres_outlives_a_killed_serve(commands: Commands) -> None:
    serve = await commands.start("serve")
    await serve.url()
    apis, workers = await processes(serve)
    serve.process.kill()
    await wait_until_gone([*apis, *workers])
    await serve.wait()
    assert commands.postmaster() is not None
    again = await commands.start("serve")
    await again.url()
    assert await again.stop() == (0, [])
    assert commands.postmaster() is None


async def test_connections_during_the_stop_are_refused(commands: Commands) -> None:
    serve = await commands.start("serve")
    address = httpx.URL(await serve.url())
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(
        b"POST /v1/sessions/s/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    )
    assert b"100 Continue" in await reader.readline()
    serve.process.terminate()
    await serve.expect_line("stopping")
    with pytest.raises(ConnectionRefusedError):  # from the API's next poll on
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                with suppress(ConnectionResetError):  # it was in the queue of the closed socket
                    _, refused = await asyncio.open_connection(address.host, address.port)
                    refused.close()
    await processes(serve)  # the worker continues while a request may wait for a summary
    writer.write(b"not JSON!")
    assert b" 422 " in await reader.read()
    writer.close()
    assert (await serve.wait())[0] == 0


async def test_a_ctrl_c_stops_all_processes_in_their_order(commands: Commands, database_url: str) -> None:
    """SIGINT goes to the terminal's process group, which does not include the processes of `serve`."""
    serve = await commands.start("serve", DATABASE_URL=database_url)
    await serve.url()
    apis, workers = await processes(serve)
    groups = {os.getpgid(one.pid) for one in (*apis, *workers)}
    assert os.getpgid(serve.process.pid) not in groups
    serve.process.send_signal(signal.SIGINT)
    assert await serve.wait() == (0, [])
    await wait_until_gone([*apis, *workers])


@pytest.mark.wing("telemetry")
async def test_several_api_processes_share_a_port_and_their_metrics(commands: Commands, database_url: str) -> None:
    api = await commands.start_fresh("api", "--processes", "2", DATABASE_URL=database_url)
    url = await api.url()
    apis, _ = await processes(api, apis=2, workers=0)
    for _ in range(REQUESTS):  # each on a connection of its own
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            assert (await http.post("/v1/sessions/s/events", json={"events": [EVENT]})).status_code == 201
    for _ in range(REQUESTS):
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            assert await append_counts(http) == {("POST", "201"): REQUESTS}
    apis[0].kill()
    assert await api.line() == f"palimpsest: serving on {url}"
    await processes(api, apis=2, workers=0)
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answer = await retry(lambda: http.post("/v1/sessions/s/events", json={"events": [EVENT]}))
        assert answer.json()["head"] == REQUESTS + 1
        assert await append_counts(http) == {("POST", "201"): REQUESTS + 1}
    status, errors = await api.stop()
    assert (status, len(errors)) == (0, 1)
    await wait_until_gone(apis)


async def append_counts(http: httpx.AsyncClient) -> dict[tuple[str, str], float]:
    """Return the number of appends in a scrape, by method and status; it also has the queue's metrics."""
    families = {one.name: one for one in text_string_to_metric_families((await http.get("/metrics")).text)}
    assert "palimpsest_jobs" in families
    return {
        (sample.labels["method"], sample.labels["status"]): sample.value
        for sample in families["palimpsest_http_requests"].samples
        if sample.labels["route"] == "/v1/sessions/{sid}/events" and sample.name.endswith("_total")
    }


async def test_several_processes_stop_as_one(commands: Commands, database: Database, database_url: str) -> None:
    api = await commands.start("api", DATABASE_URL=database_url, PROCESSES="3")
    await api.url()
    apis, _ = await processes(api, apis=3, workers=0)
    assert await api.stop() == (0, [])
    await wait_until_gone(apis)
