"""Limits per tenant and per process: requests beyond them are refused with a time to retry."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from app.core.errors import TooManyEvents, TooManySessions
from app.resources.sessions.service import BURST_SECONDS, COUNTED_SECONDS, EventRates, SessionQuota
from app.runtime.settings import Settings
from app.store import deletion, sessions
from app.store.engine import Database, acting_for
from app.tenants import DEFAULT_TENANT, Tenants
from tests.conftest import serving
from tests.support.openapi import document
from tests.support.wings import PROBES
from tests.support.wire import Answered, Wire, connected

SECONDS_MAX = 20
JSON = "Content-Type: application/json"


def events(number: int) -> dict[str, Any]:
    return {"events": [{"type": "user.message", "content": "hi"}] * number}


def kind(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"]


@asynccontextmanager
async def served(database_url: str, **settings: Any) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    async with (
        serving(Settings(**settings), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        yield url, http


async def until(http: httpx.AsyncClient, path: str, status: int, **more: Any) -> httpx.Response:
    """Repeat a GET until a response has this status, and return it."""
    async with asyncio.timeout(SECONDS_MAX):
        while (answer := await http.get(path, **more)).status_code != status:
            pass
    return answer


async def fill_places(stack: AsyncExitStack, url: str, places: int, *fields: str) -> tuple[list[Wire], Answered]:
    """Send requests without their bodies, one more than there are places; return the held ones and the refusal."""
    wires = [await stack.enter_async_context(connected(url)) for _ in range(places + 1)]
    for number, wire in enumerate(wires):
        head = [f"PUT /v1/sessions/s{number} HTTP/1.1", "Host: localhost", JSON, "Content-Length: 2", *fields, "", ""]
        await wire.send("\r\n".join(head).encode())
    answers = {asyncio.ensure_future(wire.answer()): wire for wire in wires}
    done, held = await asyncio.wait(answers, timeout=SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
    for waiting in held:
        waiting.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    [refused] = done
    return [answers[waiting] for waiting in held], refused.result()


async def finish(wire: Wire) -> int:
    """Send the body of a held request and return the status of its response."""
    await wire.send(b"{}")
    return (await wire.answer()).status


@pytest.fixture
async def two_keys(database: Database) -> tuple[str, str]:
    """The keys of two tenants."""
    tenants = Tenants(database, None)
    one, other = [await tenants.create_key(name, "k", ["admin"]) for name in ("one", "other")]
    return one.secret, other.secret


async def test_concurrent_requests_of_a_tenant_are_limited(database_url: str, two_keys: tuple[str, str]) -> None:
    one, other = ({"Authorization": f"Bearer {secret}"} for secret in two_keys)
    field = f"Authorization: Bearer {two_keys[0]}"
    async with served(database_url, tenant_requests_max=2) as (url, http), AsyncExitStack() as stack:
        held, refused = await fill_places(stack, url, 2, field)
        assert (refused.status, json.loads(refused.body)["type"]) == (429, "/problems/too-many-requests")
        assert refused.headers["content-type"] == "application/problem+json"
        assert (refused.headers["retry-after"], json.loads(refused.body)["limit"]) == ("1", 2)
        assert (await http.get("/v1/sessions", headers=one)).status_code == 429
        assert (await http.get("/v1/sessions", headers=other)).status_code == 200
        assert (await http.get("/v1/sessions")).status_code == 401
        assert await finish(held[0]) == 201
        await until(http, "/v1/sessions", 200, headers=one)
        [left], refused = await fill_places(stack, url, 1, field)
        assert refused.status == 429
        left.writer.close()
        await until(http, "/v1/sessions", 200, headers=one)
        assert await finish(held[1]) in (200, 201)


async def test_concurrent_requests_of_a_process_are_limited(database_url: str) -> None:
    async with served(database_url, requests_max=2) as (url, http), AsyncExitStack() as stack:
        held, first = await fill_places(stack, url, 2)
        assert (first.status, json.loads(first.body)["type"]) == (503, "/problems/overloaded")
        refused = await http.get("/v1/sessions")
        assert kind(refused) == (503, "/problems/overloaded")
        assert refused.headers["retry-after"] == "1"
        async with connected(url) as late:
            await late.send(b"PUT /v1/sessions/s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n")
            answer = await asyncio.wait_for(late.answer(), 5)
            assert (answer.status, json.loads(answer.body)["type"]) == (503, "/problems/overloaded")
        for path in PROBES:
            assert (await http.get(path)).status_code == 200, path
        if "/metrics" in PROBES:
            assert 'status="503"' in (await http.get("/metrics")).text
        for wire in held:
            assert await finish(wire) == 201
        await until(http, "/v1/sessions", 200)


@pytest.mark.wing("stream")
async def test_streams_do_not_count_as_concurrent_requests(database_url: str) -> None:
    async with served(database_url, requests_max=1, tenant_requests_max=1) as (_, http), AsyncExitStack() as stack:
        assert (await http.post("/v1/sessions/s/events", json=events(1))).status_code == 201
        for _ in range(3):
            answer = await stack.enter_async_context(http.stream("GET", "/v1/sessions/s/stream"))
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            while not (await anext(lines)).startswith("data:"):
                pass
        assert (await http.get("/v1/sessions/s")).status_code == 200


async def test_failed_requests_release_their_places(database_url: str) -> None:
    async with served(database_url, requests_max=1, tenant_requests_max=1) as (_, http):
        for _ in range(3):
            assert (await http.get("/v1/sessions/none")).status_code == 404
            assert (await http.get("/nowhere")).status_code == 404
            assert (
                await http.put("/v1/sessions/s", content=b"{", headers={"Content-Type": "application/json"})
            ).status_code == 422
            assert (await http.get("/v1/sessions")).status_code == 200


async def test_events_per_second_of_a_tenant_are_limited(database_url: str, two_keys: tuple[str, str]) -> None:
    one, other = ({"Authorization": f"Bearer {secret}"} for secret in two_keys)
    async with served(database_url, tenant_events_per_second=200) as (_, http):
        for _ in range(2):
            assert (await http.post("/v1/sessions/s/events", json=events(1000), headers=one)).status_code == 201
        refused = await http.post("/v1/sessions/s/events", json=events(600), headers=one)
        assert kind(refused) == (429, "/problems/too-many-events")
        assert refused.json()["limit"] == 200
        assert 1 <= int(refused.headers["retry-after"]) == refused.json()["retry_after_seconds"] <= 3
        messages = {"format": "openai", "messages": [{"role": "user", "content": "hi"}] * 600}
        assert kind(await http.post("/v1/sessions/t/messages", json=messages, headers=one)) == kind(refused)
        assert (await http.get("/v1/sessions/s", headers=one)).json()["head"] == 2000
        assert (await http.get("/v1/sessions/t", headers=one)).status_code == 404
        assert (await http.post("/v1/sessions/s/events", json=events(1000), headers=other)).status_code == 201
        async with asyncio.timeout(SECONDS_MAX):
            while (await http.post("/v1/sessions/s/events", json=events(20), headers=one)).status_code != 201:
                pass


async def test_turn_ends_count_as_events(database_url: str) -> None:
    """Twenty concurrent requests exceed the limit even if a slow database lets another event accrue meanwhile."""
    async with served(database_url, tenant_events_per_second=1) as (_, http):
        assert (await http.post("/v1/sessions/s/events", json=events(1000))).status_code == 201
        ends = await asyncio.gather(*(http.post("/v1/sessions/s/turns/end", json={}) for _ in range(20)))
        assert (429, "/problems/too-many-events") in [kind(end) for end in ends if end.is_error]


def test_unused_events_may_be_used_later_up_to_the_burst() -> None:
    now = 0.0
    rates = EventRates(300, lambda: now)
    rates.take(DEFAULT_TENANT, 300 * BURST_SECONDS)
    for amount, seconds in ((1, 1), (300, 1), (301, 2), (1000, 4)):
        with pytest.raises(TooManyEvents) as refused:
            rates.take(DEFAULT_TENANT, amount)
        assert refused.value.fields == {"limit": 300, "retry_after_seconds": seconds}
    now = 4.0
    rates.take(DEFAULT_TENANT, 1000)
    rates.take(DEFAULT_TENANT, 200)
    with pytest.raises(TooManyEvents):
        rates.take(DEFAULT_TENANT, 1)


def test_one_whole_request_fits_under_any_limit() -> None:
    EventRates(1, lambda: 0.0).take(DEFAULT_TENANT, 1000)
    EventRates(0, lambda: 0.0).take(DEFAULT_TENANT, 10**9)


async def test_sessions_of_a_tenant_are_limited(database_url: str, two_keys: tuple[str, str]) -> None:
    one, other = ({"Authorization": f"Bearer {secret}"} for secret in two_keys)
    full = (409, "/problems/too-many-sessions")
    async with served(database_url, tenant_sessions_max=3) as (_, http):
        assert (await http.put("/v1/sessions/s1", json={}, headers=one)).status_code == 201
        assert (await http.post("/v1/sessions/s2/events", json=events(1), headers=one)).status_code == 201
        assert (await http.post("/v1/sessions/s2/fork", json={"id": "s3"}, headers=one)).status_code == 201
        for _ in range(2):
            refused = await http.put("/v1/sessions/s4", json={}, headers=one)
            assert (kind(refused), refused.json()["limit"]) == (full, 3)
            assert kind(await http.post("/v1/sessions/s4/events", json=events(1), headers=one)) == full
            assert kind(await http.post("/v1/sessions/s2/fork", json={"id": "s4"}, headers=one)) == full
            assert (await http.get("/v1/sessions/s4", headers=one)).status_code == 404
        assert (await http.put("/v1/sessions/s1", json={"model": "gpt-4o"}, headers=one)).status_code == 200
        assert (await http.post("/v1/sessions/s1/events", json=events(3), headers=one)).status_code == 201
        assert (await http.post("/v1/sessions/s2/fork", json={"id": "s3"}, headers=one)).status_code == 200
        assert (await http.put("/v1/sessions/s1", json={}, headers=other)).status_code == 201
        assert (await http.delete("/v1/sessions/s1", headers=one)).status_code == 204
        assert (await http.post("/v1/sessions/s4/events", json=events(1), headers=one)).status_code == 201
        assert kind(await http.put("/v1/sessions/s5", json={}, headers=one)) == full


async def test_lines_of_a_session_have_their_own_limit(database_url: str) -> None:
    async with served(database_url, tenant_sessions_max=2, session_lines_max=3) as (_, http):
        full = (409, "/problems/too-many-lines")

        async def said(*texts: str) -> httpx.Response:
            messages = [{"role": "user", "content": text} for text in texts]
            return await http.post("/v1/sessions/s1/context", json={"messages": messages})

        lines = [(await said(*texts)).json()["line"] for texts in (("a", "b"), ("a", "c"), ("d",))]
        assert lines == ["s1@line.1", "s1@line.2", "s1@line.3"]
        for texts in (("a", "e"), ("f",)):
            refused = await said(*texts)
            assert (kind(refused), refused.json()["limit"]) == (full, 3)
        assert kind(await http.post("/v1/sessions/s1/rewind", json={"to": 0})) == full
        assert (await http.get("/v1/sessions/s1")).json()["line"] == "s1@line.3"
        assert (await said("a", "b", "more")).json()["line"] == "s1@line.1"
        assert (await http.post("/v1/sessions/s1/fork", json={"id": "s2"})).status_code == 201
        assert kind(await http.put("/v1/sessions/s3", json={})) == (409, "/problems/too-many-sessions")
        assert (await http.post("/v1/sessions/s2/rewind", json={"to": 0})).json()["line"] == "s2@line.2"


async def test_the_limit_of_sessions_is_exact(database_url: str) -> None:
    """The limit is exact although sessions are not counted every time, and those of another process count too."""
    async with (
        served(database_url, tenant_sessions_max=60) as (_, http),
        served(database_url, tenant_sessions_max=60) as (_, second),
    ):
        made = []
        for number in range(70):
            asked = (http, second)[number % 2]
            made.append((await asked.put(f"/v1/sessions/s{number}", json={})).status_code)
        assert made == [201] * 60 + [409] * 10
        listed = await http.get("/v1/sessions", params={"limit": 1000})
        assert len(listed.json()["items"]) == 60


async def test_other_processes_sessions_count_immediately_and_their_erasures_within_a_second(
    application: Database,
) -> None:
    now = 0.0
    one, other = (SessionQuota(64, lambda: now) for _ in range(2))

    async def make(quota: SessionQuota, name: str) -> None:
        async with application.transaction() as tx:
            await sessions.create(tx, DEFAULT_TENANT, name, sessions.SessionSettings(), estimator="heuristic")
            await quota.admit(tx, DEFAULT_TENANT)

    with acting_for(DEFAULT_TENANT):
        await make(one, "first")
        for number in range(63):
            await make(other, f"s{number}")
        for quota in (one, other):
            with pytest.raises(TooManySessions):
                await make(quota, "one more")
        await sessions_erased(application, "first")
        with pytest.raises(TooManySessions):
            await make(one, "one more")
        now = COUNTED_SECONDS
        await make(one, "one more")


async def sessions_erased(application: Database, name: str) -> None:
    """Erase a session as another process does, without telling any quota here."""
    assert await deletion.erase_session(application, DEFAULT_TENANT, name)


@pytest.mark.parametrize("way", ["put", "events", "fork", "context"])
async def test_concurrent_requests_never_exceed_the_limit_of_sessions(database_url: str, way: str) -> None:
    most, asked = 10, 40
    async with (
        served(database_url, tenant_sessions_max=most) as (_, http),
        served(database_url, tenant_sessions_max=most) as (_, second),
    ):
        assert (await http.post("/v1/sessions/first/events", json=events(1))).status_code == 201

        async def create(number: int) -> int:
            client, name = (http, second)[number % 2], f"s{number}"
            if way == "put":
                answer = await client.put(f"/v1/sessions/{name}", json={})
            elif way == "events":
                answer = await client.post(f"/v1/sessions/{name}/events", json=events(1))
            elif way == "fork":
                answer = await client.post("/v1/sessions/first/fork", json={"id": name})
            else:
                said = {"messages": [{"role": "user", "content": "go"}]}
                answer = await client.post(f"/v1/sessions/{name}/context", json=said)
            return answer.status_code

        statuses = await asyncio.gather(*map(create, range(asked)))
        assert sum(status in (200, 201) for status in statuses) == most - 1
        assert statuses.count(409) == asked - most + 1
        assert len((await http.get("/v1/sessions", params={"limit": 1000})).json()["items"]) == most


def test_429_and_503_are_documented_for_every_operation() -> None:
    for path, operations in json.loads(document())["paths"].items():
        for name, operation in ((one["operationId"], one) for one in operations.values()):
            if path.startswith("/v1/"):
                assert "429" in operation["responses"], name
                said = operation["responses"]["503"]["content"]["application/problem+json"]["examples"]
                assert "overloaded" in said, name
