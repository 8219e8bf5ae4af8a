"""Streams over HTTP: every change of a session once and in order, across disconnects and servers."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url

from app.runtime.settings import Settings
from app.store import compactions, dsn, keys
from app.store.engine import Database
from app.store.ids import session_ref
from app.store.log import STREAM_CHANNEL
from app.tenants import DEFAULT_TENANT, Tenants
from app.wings.stream import routes as route
from app.wings.stream import service, store
from tests.conftest import serving
from tests.support.sse import Event, streaming, take
from tests.support.waiting import count_waiting

SESSION = "/v1/sessions/s"
STREAM = f"{SESSION}/stream"
REF = session_ref(DEFAULT_TENANT, "s")
KEY = REF.session_id
SECONDS_MAX = 30
SEED = 20_261_121
T = TypeVar("T")


async def append(http: httpx.AsyncClient, *texts: str, session: str = SESSION) -> int:
    """Append user messages and return the new head."""
    events = [{"type": "user.message", "content": text} for text in texts]
    answer = await http.post(f"{session}/events", json={"events": events})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["head"])


async def with_timeout(waited: Awaitable[T]) -> T:
    async with asyncio.timeout(SECONDS_MAX):
        return await waited


def seqs(events: list[Event]) -> list[int]:
    return [event.data["seq"] for event in events if event.kind == "appended"]


async def wait_until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not await holds():
            pass


async def read_with_kills(urls: list[str], head: int, kills: int, chance: random.Random) -> list[Event]:
    """Read all events up to `head` with a reader that is disconnected `kills` times and continues on any server.

    Messages sent but not read before a disconnect are lost with the connection.
    """
    found: list[Event] = []
    for stop in [*sorted(chance.choices(range(head), k=kills)), head]:
        last_id = found[-1].id if found else None
        async with streaming(chance.choice(urls), STREAM, last_id=last_id, types="appended") as events:
            found += await take(events, stop - len(found))
    return found


async def test_a_reader_that_reconnects_gets_each_event_once_and_in_order(database_url: str) -> None:
    """Four writers use two servers; tests/long has a longer version."""
    chance = random.Random(SEED)
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(Settings(), database_url)) for _ in range(2)]
        clients = [await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30)) for url in urls]
        await clients[0].put(SESSION, json={})

        async def write(writer: int) -> None:
            for number in range(50):
                await append(clients[writer % 2], *(f"{writer}.{number}.{part}" for part in range(1 + number % 2)))

        reading = asyncio.create_task(read_with_kills(urls, 300, 10, chance))
        await with_timeout(asyncio.gather(*(write(writer) for writer in range(4))))
        found = await with_timeout(reading)
        assert seqs(found) == list(range(1, 301))
        listed = (await clients[0].get(f"{SESSION}/events", params={"limit": 500})).json()["items"]
        assert [event.data for event in found] == listed


async def test_streamed_events_equal_the_listed_ones(server: str, client: httpx.AsyncClient) -> None:
    texts = ["two\nlines\r\nand a\rthird", "data: x\n\nid: 7", "\u2028é \x85 \u2029🙂", ""]
    await append(client, *texts[:3])
    async with streaming(server, STREAM) as events:
        found = await with_timeout(take(events, 3))
    assert [event.data["content"] for event in found] == texts[:3]
    assert [event.data for event in found] == (await client.get(f"{SESSION}/events")).json()["items"]
    assert len({event.id for event in found}) == 3


async def test_a_stream_starts_after_a_seq_or_continues_after_a_message(server: str, client: httpx.AsyncClient) -> None:
    await append(client, *"abcdef")
    async with streaming(server, STREAM, after=2) as events:
        found = await with_timeout(take(events, 2))
    assert seqs(found) == [3, 4]
    async with streaming(server, STREAM, last_id=found[-1].id, after=0) as events:
        assert seqs(await with_timeout(take(events, 2))) == [5, 6]
    async with streaming(server, STREAM, last_id="") as events:
        assert seqs(await with_timeout(take(events, 1))) == [1]
    async with streaming(server, STREAM, after=100) as events:
        await append(client, *(str(number) for number in range(100)))
        assert seqs(await with_timeout(take(events, 1))) == [101]


async def test_epochs_and_compactions_are_streamed_in_order_with_events(server: str, client: httpx.AsyncClient) -> None:
    await append(client, "one", "two")
    assert (await client.get(f"{SESSION}/context", params={"max_tokens": 8_000})).status_code == 200
    assert (await client.get(f"{SESSION}/context", params={"max_tokens": 9_000, "view": "w"})).status_code == 200
    await append(client, "three")
    run = (await client.post(f"{SESSION}/compactions", json={"focus": "x"})).json()
    await append(client, "four")
    async with streaming(server, STREAM) as events:
        found = await with_timeout(take(events, 7))
        assert (await client.get(f"{SESSION}/context", params={"max_tokens": 7_000})).status_code == 200
        found += await with_timeout(take(events, 1))
    kinds = ["appended", "appended", "epoch", "epoch", "appended", "compaction", "appended", "epoch"]
    assert [event.kind for event in found] == kinds
    epochs = (await client.get(f"{SESSION}/epochs")).json()["items"]
    main_epochs = [found[2].data, found[7].data]
    for item, data in zip(epochs, main_epochs, strict=True):
        assert data == {**item, "session": "s", "view": "main", "current": True}
    assert (found[3].data["view"], found[3].data["epoch"], found[3].data["current"]) == ("w", 1, True)
    assert found[5].data == {
        "session": "s",
        "state": "scheduled",
        "run": (await client.get(f"{SESSION}/compactions/{run['id']}")).json(),
        "tokens": {"before": None, "after": None, "compacted": None},
        "aborted": False,
        "will_retry": False,
        "kept_from_seq": None,
    }
    for place, event in enumerate(found):
        async with streaming(server, STREAM, last_id=event.id) as events:
            assert await with_timeout(take(events, len(found) - place - 1)) == found[place + 1 :]
    async with streaming(server, STREAM, after=3) as events:
        assert [event.kind for event in await with_timeout(take(events, 3))] == ["compaction", "appended", "epoch"]
    async with streaming(server, STREAM, types="epoch,compaction") as events:
        assert [event.kind for event in await with_timeout(take(events, 4))] == [
            "epoch",
            "epoch",
            "compaction",
            "epoch",
        ]
    async with streaming(server, STREAM, types="compaction") as events:
        assert (await with_timeout(take(events, 1)))[0].data == found[5].data


async def test_a_stream_stays_on_the_line_that_was_current_when_it_began(
    server: str, client: httpx.AsyncClient
) -> None:
    await append(client, "one", "two")
    async with streaming(server, STREAM, after=1) as before:
        await with_timeout(take(before, 1))
        assert (await client.post(f"{SESSION}/rewind", json={"to": 1})).json()["line"] == "s@line.2"
        await append(client, "other")
        async with streaming(server, STREAM, after=1) as after:
            [other] = await with_timeout(take(after, 1))
            await append(client, "three", session=f"{SESSION}@line.1")
            [three] = await with_timeout(take(before, 1))
    assert [(one.data["seq"], one.data["content"]) for one in (other, three)] == [(2, "other"), (3, "three")]


async def test_a_forks_stream_has_the_shared_events_and_then_its_own(server: str, client: httpx.AsyncClient) -> None:
    fork = "/v1/sessions/f"
    await append(client, *(str(number) for number in range(50)))
    made = await client.post(f"{SESSION}/fork", json={"at": 45, "id": "f"})
    assert made.status_code == 201, made.text
    async with streaming(server, f"{fork}/stream", types="appended") as events:
        found = await with_timeout(take(events, 45))
        await append(client, "not of the fork")
        await append(client, "its own", "and more", session=fork)
        found += await with_timeout(take(events, 2))
    assert [event.data for event in found] == (await client.get(f"{fork}/events")).json()["items"]
    assert seqs(found) == list(range(1, 48))
    async with streaming(server, f"{fork}/stream", last_id=found[29].id, types="appended") as events:
        assert await with_timeout(take(events, 17)) == found[30:]


@pytest.mark.parametrize(
    ("params", "headers", "status", "slug"),
    [
        ({}, {"Last-Event-ID": "7"}, 422, "invalid-request"),
        ({}, {"Last-Event-ID": "1-0-x"}, 422, "invalid-request"),
        ({}, {"Last-Event-ID": "1-0-1"}, 409, "conflict"),
        ({"types": "appended,gossip"}, {}, 422, "invalid-request"),
        ({"after": "-1"}, {}, 422, "invalid-request"),
    ],
)
async def test_invalid_stream_requests_are_refused(
    client: httpx.AsyncClient, params: dict[str, str], headers: dict[str, str], status: int, slug: str
) -> None:
    await append(client, "one")
    answer = await client.get(STREAM, params=params, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{slug}")
    missing = await client.get("/v1/sessions/none/stream", headers=headers)
    assert missing.status_code == 404


async def test_a_stream_ends_with_its_session_and_does_not_continue_in_a_new_one(
    server: str, client: httpx.AsyncClient
) -> None:
    await append(client, "one")
    async with streaming(server, STREAM) as events:
        first = (await with_timeout(take(events, 1)))[0]
        assert (await client.delete(SESSION)).status_code == 204
        with pytest.raises(StopAsyncIteration):
            await with_timeout(take(events, 1))
    await append(client, "anew")
    assert (await client.get(STREAM, headers={"Last-Event-ID": first.id or ""})).status_code == 409


async def test_a_stream_ends_when_the_server_stops(database_url: str) -> None:
    async with AsyncExitStack() as readers:
        async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=url) as http:
            await append(http, "one")
            streams = [await readers.enter_async_context(streaming(url, STREAM)) for _ in range(3)]
            for events in streams:
                await with_timeout(take(events, 1))
        for events in streams:
            with pytest.raises(StopAsyncIteration):
                await with_timeout(take(events, 1))


async def test_a_stream_ends_when_its_key_is_revoked(
    server: str, database: Database, client: httpx.AsyncClient
) -> None:
    tenants = Tenants(database, None)
    reader = await tenants.create_key("default", "reader", ["read"])
    writer = await tenants.create_key("default", "writer", ["ingest"])
    client.headers["Authorization"] = f"Bearer {writer.secret}"
    await append(client, "one")
    assert (await client.get(STREAM)).status_code == 403
    async with streaming(server, STREAM, headers={"Authorization": f"Bearer {reader.secret}"}) as events:
        await with_timeout(take(events, 1))
        await keys.revoke_any(database, reader.key_id)

        async def write_on() -> None:
            for number in range(1_000_000):
                await append(client, str(number))

        writing = asyncio.create_task(write_on())
        with pytest.raises(StopAsyncIteration):
            await with_timeout(take(events, 1_000_000))
        writing.cancel()


async def test_tenants_cannot_stream_each_others_sessions(client: httpx.AsyncClient, database: Database) -> None:
    tenants = Tenants(database, None)
    ours = await tenants.create_key("acme", "k", ["admin"])
    theirs = await tenants.create_key("other", "k", ["admin"])
    client.headers["Authorization"] = f"Bearer {ours.secret}"
    await append(client, "one")
    answer = await client.get(STREAM, headers={"Authorization": f"Bearer {theirs.secret}"})
    assert answer.status_code == 404


class Listener:
    """A listener that records notifications in commit order."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    async def so_far(self) -> list[str]:
        """Return the notifications since the last call."""
        await self._database.execute("SELECT pg_notify(:channel, :said)", channel=STREAM_CHANNEL, said=str(UUID(int=0)))
        found: list[str] = []
        while (said := await with_timeout(self.heard.get())) != str(UUID(int=0)):
            found.append(said)
        return found


@pytest.fixture
async def listener(database_url: str, database: Database) -> AsyncIterator[Listener]:
    listener = Listener(database)
    connection = await asyncpg.connect(dsn.for_asyncpg(database_url))
    await connection.add_listener(STREAM_CHANNEL, lambda *said: listener.heard.put_nowait(said[-1]))
    yield listener
    await connection.close()


async def test_an_append_notifies_only_if_a_stream_is_open(
    server: str, client: httpx.AsyncClient, database: Database, listener: Listener
) -> None:
    quiet = "/v1/sessions/quiet"
    for session in (SESSION, quiet):
        await append(client, "one", session=session)
        assert (await client.post(f"{session}/compactions", json={})).status_code == 202
    assert await listener.so_far() == []
    async with streaming(server, STREAM) as events:
        await with_timeout(take(events, 2))
        for session in (quiet, SESSION):
            await append(client, "two", session=session)
            assert (await client.post(f"{session}/compactions", json={})).status_code == 202
        assert await listener.so_far() == [str(KEY)] * 2
    await append(client, "three")
    assert await listener.so_far() == [str(KEY)]  # the lease has not ended yet
    await database.execute("UPDATE sessions SET streamed_until = now()")
    await append(client, "four")
    assert await listener.so_far() == []


@pytest.mark.parametrize("kind", ["appended", "compaction"])
async def test_a_change_in_progress_when_a_stream_begins_is_not_missed(
    server: str, client: httpx.AsyncClient, database: Database, kind: str
) -> None:
    """The change was not notified, since nobody listened yet; the stream waits for its transaction before reading."""
    await append(client, "one")
    async with database.transaction() as tx:
        if kind == "appended":
            await tx.execute("UPDATE sessions SET head = 2 WHERE session_id = :key", key=KEY)
            await tx.execute(
                "INSERT INTO events (session_id, tenant_id, seq, turn, type, pinned, is_error, tokens, cum_tokens,"
                " body) SELECT session_id, tenant_id, 2, turn, type, pinned, is_error, 0, cum_tokens, body FROM events"
            )
        else:
            await compactions.schedule(tx, REF, uuid4(), "requested")

        async def first() -> Event:
            async with streaming(server, STREAM, after=1) as events:
                return (await take(events, 1))[0]

        reading = asyncio.create_task(first())

        async def it_waits() -> bool:
            return await count_waiting(database, "streamed_until") > 0

        await wait_until(it_waits)
        assert not reading.done()
    assert (await with_timeout(reading)).kind == kind


async def test_a_lost_listener_reconnects_and_misses_nothing(
    server: str, client: httpx.AsyncClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RECONNECT_SECONDS", 0.2)
    await append(client, "one")
    async with streaming(server, STREAM) as events:
        await with_timeout(take(events, 1))
        for number in range(3):
            killed = await database.fetch(
                "SELECT pg_terminate_backend(pid) AS done FROM pg_stat_activity "
                "WHERE application_name = :name AND datname = current_database()",
                name=store.APPLICATION_NAME,
            )
            assert [row["done"] for row in killed] == [True]
            head = await append(client, str(number))
            assert seqs(await with_timeout(take(events, 1))) == [head]


async def test_an_expired_lease_is_renewed_and_its_streams_read_again(
    server: str, client: httpx.AsyncClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(service, "LEASE_SECONDS", 0.1)
    await append(client, "one")
    async with streaming(server, STREAM) as events:
        await with_timeout(take(events, 1))
        await database.execute("UPDATE sessions SET streamed_until = '-infinity'")
        head = await append(client, "two")
        assert seqs(await with_timeout(take(events, 1))) == [head]


async def test_reconnecting_readers_write_nothing_unless_the_session_was_replaced(
    server: str, client: httpx.AsyncClient, database: Database
) -> None:
    async def version() -> object:
        row = await database.fetchrow("SELECT xmin FROM sessions WHERE session_id = :key", key=KEY)
        return row and row["xmin"]

    await append(client, "one")
    async with streaming(server, STREAM) as events:
        await with_timeout(take(events, 1))
        leased = await version()
        for _ in range(3):
            async with streaming(server, STREAM) as again:
                await with_timeout(take(again, 1))
        assert await version() == leased
        assert (await client.delete(SESSION)).status_code == 204
        await append(client, "anew")
        async with streaming(server, STREAM) as successor:
            await with_timeout(take(successor, 1))
            head = await append(client, "told")
            assert seqs(await with_timeout(take(successor, 1))) == [head]


async def test_a_cancelled_reader_does_not_cancel_the_lease_others_wait_for(
    server: str, client: httpx.AsyncClient, database: Database
) -> None:
    await append(client, "one")
    async with database.transaction() as tx:
        await tx.fetchrow("SELECT FROM sessions WHERE session_id = :key FOR UPDATE", key=KEY)

        async def first() -> int:
            async with streaming(server, STREAM) as events:
                return seqs(await take(events, 1))[0]

        async def waits() -> bool:
            return await count_waiting(database, "streamed_until") == 1

        gone = asyncio.create_task(first())
        await wait_until(waits)
        stays = asyncio.create_task(first())
        gone.cancel()
        await asyncio.wait([gone])
        assert await waits()
    assert await with_timeout(stays) == 1


async def test_idle_streams_hold_no_pool_connection_and_are_kept_alive(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "KEEP_ALIVE_SECONDS", 0.05)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(Settings(pool_size=1), database_url))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
        await append(http, "one")
        streams = [await stack.enter_async_context(streaming(url, STREAM)) for _ in range(25)]
        for events in streams:
            await with_timeout(take(events, 1))
            assert (await with_timeout(anext(events))).kind == "comment"
        rows = await database.fetch(
            "SELECT application_name AS name, count(*) AS n FROM pg_stat_activity "
            "WHERE datname = :name AND pid <> pg_backend_pid() GROUP BY 1",
            name=make_url(database_url).database,
        )
        assert {row["name"]: row["n"] for row in rows}[store.APPLICATION_NAME] == 1
        head = await append(http, "two")
        for events in streams:
            assert seqs(await with_timeout(take(events, 1))) == [head]


async def opens(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url, timeout=30) as http, http.stream("GET", STREAM) as answer:
        return answer.status_code == 200


async def test_streams_are_limited_and_end_with_their_client(database_url: str) -> None:
    async with (
        serving(Settings(streams_max=2), database_url) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        await append(http, "one")
        async with streaming(url, STREAM), streaming(url, STREAM):
            answer = await http.get(STREAM)
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/too-many-streams")
            assert (answer.json()["limit"], answer.headers["retry-after"]) == (2, "1")
            assert (await http.get("/v1/sessions/none/stream")).status_code == 503
        await wait_until(lambda: opens(url))


async def test_a_client_that_does_not_read_is_disconnected(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "SEND_SECONDS", 0.2)
    async with (
        serving(Settings(streams_max=1), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        for _ in range(3):
            await append(http, *["x" * 100_000] * 50)
        port = int(url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
        try:
            writer.write(f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert b" 200 " in await reader.readline()  # it has the only place, and reads no more than its buffer
            await wait_until(lambda: opens(url))
        finally:
            writer.transport.abort()


async def test_a_read_is_bounded_in_bytes_but_returns_at_least_one_event(
    client: httpx.AsyncClient, database: Database
) -> None:
    sizes = [300_000, 100_000, 100_000, 100_000, *[10] * 300]
    for begin in range(0, len(sizes), 100):
        await append(client, *("x" * size for size in sizes[begin : begin + 100]))
    began = await store.created_at(database, REF)
    assert began is not None
    reads, seq = [], 0
    while seq < len(sizes):
        news = await store.news(database, REF, began, seq=seq, number=0)
        assert news is not None
        assert [event.seq for event in news.events] == list(range(seq + 1, seq + len(news.events) + 1))
        seq = news.events[-1].seq
        reads.append(len(news.events))
    assert reads == [1, 3, 100, 100, 100]
