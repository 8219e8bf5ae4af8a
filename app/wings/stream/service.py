"""Streams: additions to a session, sent to its readers in order and once each.

A stream reads the tables after its place and waits when there is no more; a notification only ends the wait. A place is
a seq of the log and the number of the last other change. The id of every message is the place after it, so that a
reader can continue from there in any process. While a process has streams of a session it holds a lease on the session:
without a lease, appends send no notification (docs/decisions).
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
import structlog

from app.core.errors import Conflict, InvalidRequest, NotFound, StoreUnavailable, TooManyStreams
from app.core.lexicon.times import to_seconds
from app.core.log.events import canonical_json
from app.resources.events.reading import event_json
from app.store.engine import Database, acting_for
from app.store.ids import SessionRef, session_ref
from app.store.rows import StoredEvent
from app.wings.stream import store

KINDS: Final = ("appended", "epoch", "compaction")
LEASE_SECONDS: Final = 300.0
RENEW_SECONDS: Final = 50.0
LISTEN_SECONDS: Final = 10.0
"""Seconds for which a new stream waits for the listening connection."""
KEEP_ALIVE_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 1.0
_ID: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9a-f]{1,16})")


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a stream: its kind, the id of the place after it, and its data as JSON text."""

    kind: str
    id: str
    data: str


@dataclass(slots=True)
class _Watched:
    """A session with streams in this process, now or recently: the events that wake them, and the end of its lease.

    `leasing` is a running request for a lease. It continues when the reader that waits for it is gone.
    """

    ref: SessionRef
    began: datetime
    wakes: set[asyncio.Event] = field(default_factory=set)
    leased_until: float = 0.0
    leasing: asyncio.Task[None] | None = None

    @property
    def due(self) -> bool:
        """Whether the lease must be taken or renewed."""
        return time.monotonic() > self.leased_until - LEASE_SECONDS / 2


class Streams:
    """All streams of one process. They share one listening connection, and a few of the pool for reads."""

    def __init__(self, database: Database, *, streams_max: int, readers: int) -> None:
        self._database = database
        self._max = streams_max
        self._open = 0
        self._reading = asyncio.Semaphore(readers)
        self._watched: dict[UUID, _Watched] = {}
        self._listening = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.ended = False

    async def open(
        self,
        tenant_id: UUID,
        external_id: str,
        *,
        last_id: str | None,
        after: int,
        kinds: frozenset[str],
        allowed: Callable[[], Awaitable[bool]],
    ) -> "Stream":
        """Open a stream after `last_id`, or else after seq `after`; the caller closes it.

        `allowed` is awaited before every read. Raises NotFound, InvalidRequest for an id that was never sent, Conflict
        for one of a session that was erased since, TooManyStreams or StoreUnavailable.
        """
        if self._open >= self._max or self.ended:
            raise TooManyStreams(f"this process serves {self._max} streams already", limit=self._max)
        self._open += 1
        try:
            ref = session_ref(tenant_id, external_id)
            began = await store.created_at(self._database, ref)
            if began is None:
                raise NotFound(f"there is no session {external_id!r}", session=external_id)
            if last_id:
                seq, number = _place(last_id, began)
            else:
                seq, number = after, 0 if after == 0 else await store.number_at(self._database, ref.session_id, after)
            wake = await self._attach(ref, began)
        except BaseException:  # also on the cancellation of a task whose reader is gone
            self._open -= 1
            raise
        return Stream(self, ref, began, seq, number, kinds, allowed, wake)

    def end(self) -> None:
        """End every stream and open no new one."""
        self.ended = True
        self._wake_all()

    async def aclose(self) -> None:
        """Close the listening connection."""
        self.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def read(self, of: "Stream") -> store.News | None:
        """Return the news after a stream's place; None if the session is gone or the reader is no longer allowed."""
        async with self._reading:
            if not await of.allowed():
                return None
            return await store.news(
                self._database,
                of.ref,
                of.began,
                seq=of.seq if "appended" in of.kinds else None,
                number=of.number if of.kinds - {"appended"} else None,
            )

    def detach(self, session_id: UUID, wake: asyncio.Event) -> None:
        """Note that a stream has ended."""
        self._open -= 1
        self._forget(session_id, wake)

    async def _attach(self, ref: SessionRef, began: datetime) -> asyncio.Event:
        """Return the event that wakes a stream; every later commit to the session sets it."""
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(store.listen(self._database, self._on_notification, self._on_listening)),
                asyncio.create_task(self._renew()),
            ]
        wake = asyncio.Event()
        watched = self._watched.get(ref.session_id)
        if watched is None or watched.began != began:  # the lease of an erased session is void
            earlier = watched.wakes if watched else set()
            watched = self._watched[ref.session_id] = _Watched(ref, began, earlier)
        watched.wakes.add(wake)
        try:
            async with asyncio.timeout(LISTEN_SECONDS):
                await self._listening.wait()
            if watched.due:
                await self._lease(watched)
        except TimeoutError:
            self._forget(ref.session_id, wake)
            raise StoreUnavailable("the notifications of the database are unavailable") from None
        except BaseException:  # such as a reader's cancellation
            self._forget(ref.session_id, wake)
            raise
        return wake

    def _forget(self, session_id: UUID, wake: asyncio.Event) -> None:
        watched = self._watched.get(session_id)
        if watched is not None:
            watched.wakes.discard(wake)

    async def _lease(self, watched: _Watched) -> None:
        """Take a lease on a session. Concurrent callers wait for the same request."""
        if watched.leasing is None:
            watched.leasing = asyncio.create_task(self._take_lease(watched))
            watched.leasing.add_done_callback(_retrieve_failure)
        await asyncio.shield(watched.leasing)

    async def _take_lease(self, watched: _Watched) -> None:
        """Take a lease; after a gap between leases, wake the session's streams to read."""
        requested_at = time.monotonic()
        try:
            with acting_for(watched.ref.tenant_id):  # not for the tenant whose request started this task
                held = await store.lease(self._database, watched.ref, LEASE_SECONDS)
        finally:
            watched.leasing = None
        watched.leased_until = requested_at + LEASE_SECONDS
        if not held:
            _wake(watched)

    async def _renew(self) -> None:
        """Renew leases before they end, one at a time."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            for session_id, watched in list(self._watched.items()):
                if not watched.wakes:
                    if time.monotonic() > watched.leased_until:
                        self._watched.pop(session_id, None)
                elif watched.due:
                    try:
                        await self._lease(watched)
                    except (StoreUnavailable, asyncpg.PostgresError) as error:
                        structlog.get_logger().warning("streams could not renew a lease", error=str(error))
                        break

    async def _on_listening(self) -> None:
        """Wake all streams when the connection listens: earlier additions sent no notification."""
        for watched in list(self._watched.values()):
            watched.leased_until = 0.0  # this may be another database, without the leases
            if watched.wakes:
                await self._lease(watched)
        self._listening.set()
        self._wake_all()

    def _on_notification(self, session: str) -> None:
        watched = self._watched.get(UUID(session))
        if watched is not None:
            _wake(watched)

    def _wake_all(self) -> None:
        for watched in self._watched.values():
            _wake(watched)


@dataclass(slots=True, eq=False)
class Stream:
    """One reader of one session, and its place: the last seq and the last change sent to it."""

    _streams: Streams
    ref: SessionRef
    began: datetime
    seq: int
    number: int
    kinds: frozenset[str]
    allowed: Callable[[], Awaitable[bool]]
    _wake: asyncio.Event
    _closed: bool = False

    def close(self) -> None:
        """Close the stream, which frees its place among those of this process."""
        if not self._closed:
            self._closed = True
            self._streams.detach(self.ref.session_id, self._wake)

    async def messages(self) -> AsyncIterator[Message | None]:
        """Yield messages in order, and None after each KEEP_ALIVE_SECONDS without one.

        Ends when the session is erased, the reader's key stops working, or the server stops. Waits while the database
        is unavailable. Holds at most the messages of one read, and reads more only after they were taken.
        """
        while not self._streams.ended:
            self._wake.clear()
            try:
                news = await self._streams.read(self)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                yield None
                continue
            if news is None:
                return
            for message in self._messages_of(news):
                yield message
            if self._has_more(news):
                continue
            while not self._wake.is_set():
                try:
                    await asyncio.wait_for(self._wake.wait(), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield None

    def _messages_of(self, news: store.News) -> list[Message]:
        """Return the messages of one read that can be sent: a change is sent after the events that precede it."""
        messages: list[Message] = []
        events = deque(news.events)
        for change in news.changes:
            while events and events[0].seq <= change.head:
                messages.append(self._event(events.popleft()))
            if news.events and not events and self.seq < min(change.head, news.head):
                return messages
            self.number = change.number
            if change.kind in self.kinds:
                messages.append(Message(change.kind, self._id(), change.body))
        messages += map(self._event, events)
        return messages

    def _event(self, event: StoredEvent) -> Message:
        self.seq = event.seq
        return Message("appended", self._id(), canonical_json(event_json(self.ref.session_id, event)))

    def _has_more(self, news: store.News) -> bool:
        """Return whether more may follow than one read returns."""
        return (bool(news.events) and self.seq < news.head) or len(news.changes) == store.CHANGES_MAX

    def _id(self) -> str:
        return f"{self.seq}-{self.number}-{_mark(self.began)}"


def _mark(began: datetime) -> str:
    """Return a mark that distinguishes a session from an earlier one of the same name."""
    return f"{int(to_seconds(began) * 1_000_000):x}"


def _place(last_id: str, began: datetime) -> tuple[int, int]:
    """Parse the place of a message's id. Raises InvalidRequest or Conflict."""
    found = _ID.fullmatch(last_id)
    if found is None:
        raise InvalidRequest("Last-Event-ID is not the id of a message of this stream", field="Last-Event-ID")
    if found[3] != _mark(began):
        raise Conflict("the session was erased and created again; connect without Last-Event-ID")
    return int(found[1]), int(found[2])


def _retrieve_failure(leasing: asyncio.Task[None]) -> None:
    """Retrieve a failed lease's exception: every waiting reader gets it, but there may be none."""
    if not leasing.cancelled():
        leasing.exception()


def _wake(watched: _Watched) -> None:
    for wake in watched.wakes:
        wake.set()
