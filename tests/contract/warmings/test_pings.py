"""The gateway's pings over real HTTP, with a clock that stands still until a test moves it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from app.store.engine import Database
from app.tenants import Tenants
from app.wings.warmings import pings as pinging
from app.wings.warmings.pings import PingClock
from tests.conftest import serving
from tests.support.gateways import KEY, SESSION, GatewayReader, settings
from tests.support.metered import scrape
from tests.support.provider import Provider, ProviderReply, ReceivedRequest

pytestmark = [pytest.mark.wing("gateway"), pytest.mark.wing("audit")]

BODY = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 100,
    "stream": True,
    "system": "You are terse.",
    "messages": [{"role": "user", "content": "word " * 3_000}],
}
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "anthropic-beta": "b", "idempotency-key": "once"}
PATH = "/gateway/anthropic/v1/messages"
HOUR = {"cache": {"ttl_seconds": 3_600, "write_price": 2.0}}
SECONDS = 20


class Clock:
    """A clock that stands still until it is moved, and the waits for it."""

    def __init__(self) -> None:
        self.time = 0.0
        self._waits: list[tuple[float, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()
        self.ends: list[str] = []
        """The reasons of series that have ended."""

    async def sleep(self, seconds: float) -> None:
        wait = asyncio.get_running_loop().create_future()
        self._waits.append((self.time + seconds, wait))
        self._changed.set()
        await wait

    def see(self, _: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Take note of the end of a series in the log."""
        if line["event"] == "pings end":
            self.ends.append(line["reason"])
            self._changed.set()
        return line

    async def next_wait(self) -> float:
        """Return the time at which the next wait is over, once something waits."""
        await self._until(lambda: bool(self._pending()))
        return min(self._pending())

    async def end(self) -> str:
        """Return the reason for which a series ended, once one has."""
        await self._until(lambda: bool(self.ends))
        return self.ends.pop()

    def move_to(self, time: float) -> None:
        """Move on, and end the waits that are over."""
        self.time = time
        for until, wait in self._waits:
            if until <= self.time and not wait.done():
                wait.set_result(None)

    def _pending(self) -> list[float]:
        return [until for until, wait in self._waits if not wait.done()]

    async def _until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not ready():
                self._changed.clear()
                await self._changed.wait()


Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pinging, "CLOCK", PingClock(lambda: made.time, made.sleep))
    return made


@pytest.fixture
def served(database_url: str, provider: Provider, clock: Clock) -> Serve:
    """A function that serves a gateway with given settings, and yields its client."""
    provider.cache = (3_000, 0)

    @asynccontextmanager
    async def start(**given: Any) -> AsyncIterator[httpx.AsyncClient]:
        with capture_logs(processors=[clock.see]):
            async with (
                serving(settings(provider, **{"gateway_pings": "hour"} | given), database_url) as url,
                httpx.AsyncClient(base_url=url, timeout=30, verify=False, headers=HEADERS | SESSION) as http,
            ):
                answer = await http.put("/v1/sessions/s", json={"policy": HOUR})
                assert answer.status_code == 201, answer.text
                yield http

    return start


async def call(http: httpx.AsyncClient, *, mode: str = "context", **changed: Any) -> list[Any]:
    """Make the client's next call; return its messages."""
    messages: list[Any] = changed.setdefault("messages", BODY["messages"])
    answer = await http.post(PATH, json=BODY | changed)
    assert (answer.status_code, answer.headers["x-palimpsest-mode"]) == (200, mode)
    return messages


def pings_of(provider: Provider) -> list[ReceivedRequest]:
    return [one for one in provider.calls() if one.body["max_tokens"] == 0]


@pytest.mark.wing("ledger")
async def test_a_ping_is_the_last_request_without_an_answer_and_a_row_of_the_ledger(
    served: Serve, clock: Clock, provider: Provider, behind: GatewayReader
) -> None:
    async with served() as http:
        await call(http)
        due = await clock.next_wait()
        assert 3_530 < due < 3_540
        clock.move_to(due - 1)
        assert pings_of(provider) == []
        clock.move_to(due)
        assert await clock.next_wait() == due + 3_540
        first, ping = provider.calls()
        assert {**first.body, "max_tokens": 0} == {**ping.body, "stream": True}
        assert "stream" not in ping.body
        assert (ping.header("x-api-key"), ping.header("anthropic-beta")) == (KEY, "b")
        assert ping.header("idempotency-key") is None
        assert not any(name.startswith("x-palimpsest-") for name, _ in ping.headers)
        ledger = (await http.get("/v1/sessions/s/ledger")).json()
        assert len(ledger["calls"]) == 1
        warmed = ledger["warmings"]
        assert (warmed["warmings"], warmed["failed"], warmed["read_tokens"]) == (1, 0, 3_000)
        await behind.logged(http, 3)


@pytest.mark.wing("telemetry")
@pytest.mark.wing("ledger")
async def test_metrics_count_pings_and_their_price(served: Serve, clock: Clock, provider: Provider) -> None:
    async with served() as http:
        before = await scrape(http)
        await call(http)
        clock.move_to(await clock.next_wait())
        due = await clock.next_wait()
        provider.script.append(ProviderReply(status=529, error={}))
        clock.move_to(due)
        assert await clock.end() == "failed"
        after = await scrape(http)
        counted = "palimpsest_gateway_pings_total"
        for outcome in ("sent", "failed"):
            assert after.total(counted, outcome=outcome) == before.total(counted, outcome=outcome) + 1
        billed = "palimpsest_gateway_ping_billed_tokens_total"
        spent = (await http.get("/v1/sessions/s/ledger")).json()["warmings"]["billed"]
        assert spent > 300
        assert after.total(billed) - before.total(billed) == pytest.approx(spent)


async def test_a_clients_call_begins_a_new_series_of_pings(served: Serve, clock: Clock, provider: Provider) -> None:
    async with served() as http:
        messages = await call(http)
        await clock.next_wait()
        clock.move_to(3_000)
        reply = {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
        await call(http, messages=[*messages, reply, {"role": "user", "content": "and?"}])
        due = await clock.next_wait()
        assert due > 3_000 + 3_530
        clock.move_to(due)
        assert await clock.next_wait() == due + 3_540
        [ping] = pings_of(provider)
        assert len(ping.body["messages"]) == 3


@pytest.mark.wing("ledger")
async def test_a_ping_that_a_clients_call_overtakes_is_still_recorded(
    served: Serve, clock: Clock, provider: Provider
) -> None:
    arrived, release = asyncio.Event(), asyncio.Event()

    def choose(asked: ReceivedRequest) -> ProviderReply:
        if asked.body["max_tokens"]:
            return ProviderReply()
        arrived.set()
        return ProviderReply(delay_until=release)

    provider.choose = choose
    async with served() as http:
        messages = await call(http)
        clock.move_to(await clock.next_wait())
        async with asyncio.timeout(SECONDS):
            await arrived.wait()
        reply = {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
        await call(http, messages=[*messages, reply, {"role": "user", "content": "and?"}])
        assert await clock.next_wait() > 2 * 3_530
        release.set()
        async with asyncio.timeout(SECONDS):
            while not (await http.get("/v1/sessions/s/ledger")).json()["warmings"]["warmings"]:
                pass
        assert len(pings_of(provider)) == 1


async def test_pings_end_when_the_client_has_gone(served: Serve, clock: Clock, provider: Provider) -> None:
    async with served(gateway_ping_idle_seconds=7_000) as http:
        await call(http)
        clock.move_to(await clock.next_wait())
        assert await clock.end() == "gone"
        assert len(pings_of(provider)) == 1


async def test_pings_end_at_the_sessions_limit_also_for_its_later_calls(
    served: Serve, clock: Clock, provider: Provider
) -> None:
    provider.cache = (3_000, 0)
    async with served(gateway_ping_spend_tokens=1_500) as http:
        messages = await call(http)
        clock.move_to(await clock.next_wait())
        assert await clock.end() == "spent"
        reply = {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
        await call(http, messages=[*messages, reply, {"role": "user", "content": "and?"}])
        assert await clock.end() == "spent"
        assert len(pings_of(provider)) == 1


@pytest.mark.parametrize(("status", "reason", "again"), [(529, "failed", True), (400, "refused", False)])
@pytest.mark.wing("ledger")
async def test_the_first_error_ends_pings_and_a_refusal_those_of_later_calls(
    served: Serve, clock: Clock, provider: Provider, status: int, reason: str, again: bool
) -> None:
    async with served() as http:
        messages = await call(http)
        provider.script.append(
            ProviderReply(status=status, error={"error": {"type": "e", "message": f"bad key {KEY}"}})
        )
        clock.move_to(await clock.next_wait())
        assert await clock.end() == reason
        warmed = (await http.get("/v1/sessions/s/ledger")).json()["warmings"]
        assert (warmed["warmings"], warmed["failed"], warmed["billed"]) == (1, 1, 0)
        reply = {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
        await call(http, messages=[*messages, reply, {"role": "user", "content": "and?"}])
        if again:
            assert await clock.next_wait() > 2 * 3_530
        assert len(pings_of(provider)) == 1


@pytest.mark.wing("ledger")
async def test_pings_end_if_the_provider_did_not_read_its_cache(
    served: Serve, clock: Clock, provider: Provider
) -> None:
    async with served() as http:
        await call(http)
        provider.cache = (0, 3_000)
        clock.move_to(await clock.next_wait())
        assert await clock.end() == "missed"
        warmed = (await http.get("/v1/sessions/s/ledger")).json()["warmings"]
        assert (warmed["read_tokens"], warmed["write_tokens"]) == (0, 3_000)


async def test_no_ping_writes_a_cache_that_expired_while_the_process_was_suspended(
    served: Serve, clock: Clock, provider: Provider
) -> None:
    async with served() as http:
        await call(http)
        await clock.next_wait()
        clock.move_to(3_601)
        assert await clock.end() == "expired"
        assert pings_of(provider) == []


async def test_no_ping_for_a_call_that_another_process_has_continued_or_whose_session_is_gone(
    served: Serve, clock: Clock, provider: Provider
) -> None:
    async with served() as http:
        messages = await call(http)
        due = await clock.next_wait()
        reply = {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
        made = {"messages": [*messages, reply], "system": BODY["system"], "format": "anthropic"}
        assert (await http.post("/v1/sessions/s/context", json=made)).status_code == 200
        clock.move_to(due)
        assert await clock.end() == "continued"
        await call(http, messages=[{"role": "user", "content": "other " * 3_000}])
        due = await clock.next_wait()
        assert (await http.delete("/v1/sessions/s")).status_code in (200, 202, 204)
        clock.move_to(due)
        assert await clock.end() == "continued"
        assert pings_of(provider) == []


@pytest.mark.wing("ledger")
async def test_a_process_holds_no_more_than_its_bytes(
    served: Serve, clock: Clock, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinging, "BYTES_MAX", 20_000)
    async with served() as http:
        await http.put("/v1/sessions/second", json={"policy": HOUR})
        await call(http)
        first = await clock.next_wait()
        http.headers["x-palimpsest-session"] = "second"
        await call(http)
        await clock.next_wait()
        clock.move_to(first + 50)
        await clock.next_wait()
        assert len(pings_of(provider)) == 1
        assert (await http.get("/v1/sessions/second/ledger")).json()["warmings"]["warmings"] == 1


@pytest.mark.wing("ledger")
async def test_pings_act_for_the_tenant_of_their_client(
    served: Serve, clock: Clock, provider: Provider, database: Database
) -> None:
    async with served() as http:
        key = (await Tenants(database, None).create_key("other", "k", ["ingest", "read"])).secret
        http.headers.update({"x-palimpsest-key": key, "authorization": f"Bearer {key}"})
        await http.put("/v1/sessions/s", json={"policy": HOUR})
        await call(http)
        clock.move_to(await clock.next_wait())
        await clock.next_wait()
        assert (await http.get("/v1/sessions/s/ledger")).json()["warmings"]["warmings"] == 1
        [row] = await database.fetch("SELECT t.name FROM warmings JOIN tenants t USING (tenant_id)")
        assert row["name"] == "other"


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"gateway_pings": "off"}, {}),
        ({}, {"tool_choice": {"type": "any"}, "tools": [{"name": "a", "input_schema": {"type": "object"}}]}),
        ({}, {"messages": [{"role": "user", "content": "too small to be cached"}]}),
    ],
)
async def test_calls_that_are_not_pinged(
    served: Serve, clock: Clock, provider: Provider, given: dict[str, Any], changed: dict[str, Any]
) -> None:
    async with served(**given) as http:
        await call(http, **changed)
        clock.move_to(3_599)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await clock.next_wait()
        assert pings_of(provider) == []


async def test_the_key_is_in_no_table_and_no_line_of_the_log(
    served: Serve, clock: Clock, provider: Provider, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with capture_logs() as lines:
        async with served() as http:
            await call(http)
            clock.move_to(await clock.next_wait())
            due = await clock.next_wait()
            provider.script.append(ProviderReply(status=401, error={"error": {"message": f"invalid x-api-key {KEY}"}}))
            clock.move_to(due)
            assert await clock.end() == "refused"
    assert len(pings_of(provider)) == 2
    assert KEY not in json.dumps(lines, default=str)
    assert KEY not in "".join(capsys.readouterr())
    tables = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    for row in tables:
        stored = await database.fetch(f"SELECT t::text AS row FROM {row['tablename']} t")
        assert not any(KEY in one["row"] for one in stored), row["tablename"]
