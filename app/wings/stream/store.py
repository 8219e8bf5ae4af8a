"""Reads of a stream, and the connection whose notifications wake it.

The tables are authoritative: the log by seq, `changes` by number. Rows of both become visible in order, since a
transaction that adds one holds a lock on a row of the session until it ends. A notification carries only an id.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import structlog

from app.core.errors import StoreUnavailable
from app.store import event_log
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef
from app.store.log import STREAM_CHANNEL
from app.store.rows import StoredEvent, stored_event

APPLICATION_NAME: Final = "palimpsest stream"
RECONNECT_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 15.0
PROBE_TIMEOUT_SECONDS: Final = 5.0
"""Interval and time limit of probes of the connection that serves a process's streams: it may have died unnoticed."""

EVENTS_MAX: Final = 100
BYTES_MAX: Final = 262_144
CHANGES_MAX: Final = 100
SHARED_MAX: Final = 20
"""Limits of one read; `SHARED_MAX` is for a fork's shared events. A single event is read whatever its size."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """A change of a session other than an event, made when the log's head was `head`; `body` is JSON text."""

    number: int
    kind: str
    head: int
    body: str


@dataclass(frozen=True, slots=True)
class News:
    """A session's events and changes after a position, in order, from one snapshot; `head` is the log's."""

    head: int
    events: tuple[StoredEvent, ...]
    changes: tuple[StreamEvent, ...]


async def created_at(database: Database, ref: SessionRef) -> datetime | None:
    """Return the time of a session's creation, by which sessions of one name differ; None if there is none."""
    row = await database.fetchrow(
        "SELECT created_at FROM sessions WHERE session_id = :session_id AND tenant_id = :tenant_id", **ref._asdict()
    )
    return None if row is None else row["created_at"]


async def number_at(database: Database, session_id: UUID, head: int) -> int:
    """Return the number of the last change made before the log reached `head`; 0 if there is none."""
    row = await database.fetchrow(
        "SELECT coalesce((SELECT min(number) - 1 FROM changes WHERE session_id = :session_id AND head >= :head), "
        "(SELECT max(number) FROM changes WHERE session_id = :session_id), 0) AS number",
        session_id=session_id,
        head=head,
    )
    return 0 if row is None else int(row["number"])


# The lease is written to the row that appends lock, and the row that changes lock is locked with it: when it commits,
# all transactions before it have committed, and all later ones see the lease. The previous lease is read without a
# lock: at worst an earlier, shorter one is seen.
_LEASE: Final = """
WITH was AS (
    SELECT streamed_until FROM sessions WHERE session_id = :session_id
), leased AS (
    UPDATE sessions SET streamed_until = greatest(streamed_until, now() + make_interval(secs => :seconds))
    WHERE session_id = :session_id AND tenant_id = :tenant_id RETURNING session_id
), locked AS (
    INSERT INTO change_counts (session_id, tenant_id, number) SELECT session_id, :tenant_id, 0 FROM leased
    ON CONFLICT (session_id) DO UPDATE SET number = change_counts.number RETURNING 1
)
SELECT coalesce(streamed_until > clock_timestamp(), false) AS held FROM leased, was
"""


async def lease(database: Database, ref: SessionRef, seconds: float) -> bool:
    """Have the session notify of additions for `seconds`; return whether it has done so until now, without a gap."""
    row = await database.fetchrow(_LEASE, **ref._asdict(), seconds=seconds)
    return row is not None and bool(row["held"])


# One array per column: an array of rows without a named type cannot be sent from one server to another.
_NEWS: Final = """
SELECT s.head, e.*, c.* FROM sessions s, LATERAL (
    SELECT array_agg(seq ORDER BY seq) AS seqs, array_agg(event_id ORDER BY seq) AS event_ids,
           array_agg(turn ORDER BY seq) AS turns, array_agg(tokens ORDER BY seq) AS tokens,
           array_agg(body ORDER BY seq) AS bodies, array_agg(created_at ORDER BY seq) AS times
    FROM (SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before FROM (
              SELECT seq, event_id, turn, tokens, body::text AS body, created_at FROM events
              WHERE session_id = :session_id AND seq > :seq ORDER BY seq LIMIT :events_max) n) sized
    WHERE before < :bytes_max
) e, LATERAL (
    SELECT array_agg(number ORDER BY number) AS numbers, array_agg(kind ORDER BY number) AS kinds,
           array_agg(head ORDER BY number) AS heads, array_agg(body ORDER BY number) AS changes
    FROM (SELECT number, kind, head, body::text AS body FROM changes
          WHERE session_id = :session_id AND number > :number ORDER BY number LIMIT :changes_max) n
) c WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id AND s.created_at = :began
"""
_EVENTS: Final = ("seqs", "event_ids", "turns", "tokens", "bodies", "times")
_CHANGES: Final = ("numbers", "kinds", "heads", "changes")


def _rows(row: asyncpg.Record, names: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    """Return the rows whose columns are the arrays of these names."""
    return zip(*(row[name] or () for name in names), strict=True)


async def news(
    database: Database, ref: SessionRef, began: datetime, *, seq: int | None, number: int | None
) -> News | None:
    """Return the events after `seq` and changes after `number` (None: none of these); None if the session is gone."""
    row = await database.fetchrow(
        _NEWS,
        **ref._asdict(),
        began=began,
        seq=seq or 0,
        number=number or 0,
        events_max=0 if seq is None else EVENTS_MAX,
        changes_max=0 if number is None else CHANGES_MAX,
        bytes_max=BYTES_MAX,
    )
    if row is None:
        return None
    events = tuple(map(stored_event, _rows(row, _EVENTS)))
    if seq is not None and row["head"] > seq and not (events and events[0].seq == seq + 1):
        events = tuple(await event_log.stored(database, SessionLog(ref.session_id), seq, SHARED_MAX))  # an ancestor's
    return News(row["head"], events, tuple(StreamEvent(*change) for change in _rows(row, _CHANGES)))


async def listen(database: Database, on_news: Callable[[str], None], ready: Callable[[], Awaitable[None]]) -> None:
    """Call `on_news` with the id of every session with news, on one connection, until cancelled.

    A lost connection is opened again until that succeeds. `ready` is awaited whenever listening has begun: news from
    before then must be looked for.
    """
    logger = structlog.get_logger()
    lost = False

    async def on_connect() -> None:
        nonlocal lost
        await ready()
        if lost:
            logger.warning("streams have the database again")
        lost = False

    while True:
        connection: asyncpg.Connection | None = None
        try:
            connection = await database.open_connection(APPLICATION_NAME)
            await _receive(connection, on_news, on_connect)
        except (StoreUnavailable, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if not lost:
                logger.warning("streams lost the database; it is tried until it works", error=str(error))
            lost = True
        finally:
            if connection is not None:
                with suppress(asyncpg.InterfaceError):
                    connection.terminate()
        await asyncio.sleep(RECONNECT_SECONDS)


async def _receive(
    connection: asyncpg.Connection, heard: Callable[[str], None], ready: Callable[[], Awaitable[None]]
) -> None:
    """Listen until the connection is lost. Raises the error that shows the loss, such as TimeoutError."""
    lost = asyncio.Event()
    connection.add_termination_listener(lambda _: lost.set())
    await connection.add_listener(STREAM_CHANNEL, lambda *notification: heard(notification[-1]))
    await ready()
    while not lost.is_set():
        try:
            await asyncio.wait_for(lost.wait(), PROBE_SECONDS)
        except TimeoutError:
            await connection.execute("SELECT 1", timeout=PROBE_TIMEOUT_SECONDS)
