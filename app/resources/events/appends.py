"""Append requests, the facts their responses are built from, and the snapshots of sessions that they are laid out from.

Besides its caches, a process keeps a snapshot of each session and a list of the tasks that wait for it. An append
applies only if the session's settings and ancestors, and its turn if the events depend on it, are still those of the
snapshot; other appends in between do not matter. Nothing drops a snapshot when its session changes, which may happen in
any process: an append that does not apply is made again under the lock of the session's row, from a new snapshot.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from uuid import UUID

from app.core import dataclass
from app.core.errors import CannotFit, IdempotencyConflict, InvalidPolicy, StoreUnavailable
from app.core.log.appends import FIRST, TurnState, parse_batch
from app.core.log.events import Draft, Json
from app.core.log.segments import line_of
from app.core.policy.policy import Policy
from app.core.render.formats import FORMATS, check_native
from app.store import answers, sessions
from app.store.engine import Connection, Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef
from app.store.rows import StoredEvent
from app.store.sessions import DEFAULT_POLICY, SessionRow
from app.tokenizers import Counting


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """One append: posted events, or events converted from a provider's messages.

    `indices` gives for each event the index of the event or message of the request that it came from.
    """

    drafts: tuple[Draft, ...]
    expected_head: int | None
    key: str | None
    request_sha256: bytes
    indices: Sequence[int] = ()


class EventReceipt(NamedTuple):
    """An event's place in the log and its tokens."""

    seq: int
    id: str
    turn: int
    tokens: int


class BudgetPressure(NamedTuple):
    """The main view's tokens relative to its target."""

    tokens: int
    budget: int
    ratio: float
    level: str


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append, with the field names of the API.

    `session` is the name of the row that was appended to, which may be a line's; the response converts it to the
    session's id. `created` is False for a repeated append.
    """

    session: str
    head: int
    epoch: int
    events: tuple[EventReceipt, ...]
    pressure: BudgetPressure
    created: bool = True

    @property
    def line(self) -> str:
        """Id of the line that was appended to."""
        return line_of(self.session)


@dataclass(frozen=True, slots=True)
class AppendFacts:
    """The facts that an append's response is built from: the log from `first` to `head`, and the main view then."""

    head: int
    first: int
    epoch: int
    target: int | None
    tokens: int
    turns: int = 0

    @classmethod
    def without_new_events(cls, session: SessionRow, head: int, tokens: int) -> "AppendFacts":
        """Return the facts of a request that added no events, with the log's `head` and the `tokens` up to it."""
        of_view = session.epoch, session.target, tokens + session.carry_tokens
        return cls(head, head + 1, *of_view, session.state.turns)


def events_request(raw: Json, expected_head: int | None, key: str | None, request_bytes: bytes) -> AppendRequest:
    """Parse events. Raises InvalidRequest or InvalidEvent."""
    drafts = parse_batch(raw, native=True)
    for index, draft in enumerate(drafts):
        if draft.native is not None:
            check_native(draft, index)
    return AppendRequest(drafts, expected_head, key, hashlib.sha256(request_bytes).digest(), range(len(drafts)))


def messages_request(
    format_name: str,
    raw: Sequence[Any],
    expected_head: int | None,
    key: str | None,
    request_bytes: bytes,
    events: Sequence[Any] = (),
) -> AppendRequest:
    """Parse provider-native messages, and `events` that follow them. Their indices are counted on from the messages'.

    Raises InvalidRequest, InvalidMessage or InvalidEvent.
    """
    groups = [*FORMATS[format_name].reader(raw), *([event] for event in events)]
    drafts = parse_batch([event for group in groups for event in group], native=True)
    for index, draft in enumerate(drafts[len(drafts) - len(events) :], len(drafts) - len(events)):
        if draft.native is not None:
            check_native(draft, index)
    indices = [index for index, group in enumerate(groups) for _ in group]
    return AppendRequest(drafts, expected_head, key, hashlib.sha256(request_bytes).digest(), indices)


def measure_pressure(
    tokens: int, target: int | None, policy: Policy, model: str | None, counting: Counting
) -> BudgetPressure:
    """Compare the main view with its target, or, before its first context, with the target of its policy and model.

    Never raises: it is part of the response to an append that is already stored.
    """
    if target is None:
        try:
            target = counting.own_budget(policy, model).target
        except (CannotFit, InvalidPolicy):  # nothing of the window is left; a context request will report it
            target = 1
    target, tokens = max(1, target), max(0, tokens)
    ratio = tokens / target
    level = "hard" if tokens > target else "soft" if ratio >= policy.soft_ratio else "none"
    return BudgetPressure(tokens, target, round(ratio, 4), level)


def event_id(session_id: UUID, seq: int) -> str:
    """Return the id of an event posted without one: the `uuid5` of its place."""
    digest = hashlib.sha1(session_id.bytes + str(seq).encode(), usedforsecurity=False).digest()
    return str(UUID(bytes=digest[:16], version=5))


def receipt(session_id: UUID, stored: StoredEvent) -> EventReceipt:
    """Return the receipt of a stored event."""
    return EventReceipt(stored.seq, stored.event_id or event_id(session_id, stored.seq), stored.turn, stored.tokens)


def order_receipts(
    drafts: Sequence[Draft], known: Mapping[str, StoredEvent], others: Sequence[EventReceipt], session_id: UUID
) -> tuple[EventReceipt, ...]:
    """Return the receipts of a request's events; `others` are those of events that `known` lacks."""
    rest = iter(others)
    found = (known.get(draft.id) if draft.id is not None else None for draft in drafts)
    return tuple(next(rest) if stored is None else receipt(session_id, stored) for stored in found)


async def find_original(tx: Connection, session_id: UUID, request: AppendRequest) -> AppendFacts | None:
    """Return the facts of the first response under this idempotency key, or None. Raises IdempotencyConflict."""
    before = await answers.find(tx, session_id, request.key) if request.key is not None else None
    if before is not None and before.request_sha256 != request.request_sha256:
        # without the mark of `KeyClaim.for_append`, which no client has sent
        raise IdempotencyConflict.of_key((request.key or "").rstrip("\n"))
    return None if before is None else AppendFacts(**before.response)


SESSIONS_REMEMBERED_MAX: Final = 50_000
WAIT_SECONDS: Final = 30.0
WAITING_MAX: Final = 256
"""Maximum number of tasks that wait for one session; further ones are refused."""


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """The last known state of a session: enough to count a batch and to lay it out before the session's row is read."""

    log: SessionLog
    model: str | None
    estimator: str
    policy: tuple[str, int] = DEFAULT_POLICY
    turn: TurnState = FIRST

    @classmethod
    def of(cls, row: SessionRow) -> "SessionSnapshot":
        """Return the snapshot of a session's row."""
        return cls(row.log, row.model, row.estimator, row.policy, row.state.turn)


class SessionSnapshots:
    """Keeps snapshots of the most recently used sessions."""

    def __init__(self, database: Database, counting: Counting) -> None:
        self._database = database
        self._counting = counting
        self._known: OrderedDict[UUID, SessionSnapshot] = OrderedDict()

    async def get(self, ref: SessionRef) -> SessionSnapshot:
        """Return the snapshot of a session, or that of a new session."""
        known = self._known.get(ref.session_id)
        if known is not None:
            return known
        row = await sessions.find(self._database, ref)
        if row is None:
            return SessionSnapshot(SessionLog(ref.session_id, ()), None, self._counting.estimator(None).name)
        read = SessionSnapshot.of(row)
        self.put(ref.session_id, read)
        return read

    def put(self, session_id: UUID, seen: SessionSnapshot) -> None:
        """Keep a snapshot for the session's next append."""
        self._known[session_id] = seen
        self._known.move_to_end(session_id)
        if len(self._known) > SESSIONS_REMEMBERED_MAX:
            self._known.popitem(last=False)


class WaitingLists:
    """Lets one task of this process through at a time for each session, in the order of arrival.

    Correctness relies on the lock in the database; this list keeps waiting tasks from holding all connections.
    """

    def __init__(self) -> None:
        self._locks: dict[UUID, asyncio.Lock] = {}
        self._waiting: dict[UUID, int] = {}

    @asynccontextmanager
    async def exclusive(self, session_id: UUID) -> AsyncIterator[None]:
        """Run the block when all tasks that came first for this session have finished theirs.

        Raises StoreUnavailable if too many tasks wait already, or after WAIT_SECONDS.
        """
        waiting = self._waiting.get(session_id, 0)
        if waiting >= WAITING_MAX:
            raise StoreUnavailable(f"{waiting} requests wait for this session already")
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        self._waiting[session_id] = waiting + 1
        try:
            try:
                await (asyncio.wait_for(lock.acquire(), WAIT_SECONDS) if waiting else lock.acquire())
            except TimeoutError:
                raise StoreUnavailable("other requests have held this session for too long") from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._waiting[session_id] -= 1
            if not self._waiting[session_id]:
                del self._waiting[session_id], self._locks[session_id]
