"""Reading of the log, and redaction of its events."""

from typing import Any
from uuid import UUID

from app.core.errors import NotFound, OutsidePrefix
from app.core.lexicon.times import time_text
from app.resources.contexts.view_cache import ViewCache
from app.resources.events.appends import event_id
from app.store import compactions, deletion, event_log, layers, log, sessions, summaries, views, visibility
from app.store.engine import Connection, Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef, new_id, session_key, session_ref
from app.store.rows import StoredEvent


class Reading:
    """Reads the log as it was written."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def events(self, tenant_id: UUID, address: str, after: int, limit: int) -> list[dict[str, Any]]:
        """Return up to `limit` events with seq > `after`, in order. Raises NotFound for an unknown session."""
        session_id = session_key(tenant_id, address)
        rows = await event_log.stored(self._database, SessionLog(session_id), after, limit)
        if not rows:
            await sessions.get(self._database, tenant_id, address)
        return [event_json(session_id, row) for row in rows]

    async def events_of_kind(
        self, tenant_id: UUID, address: str, after: int, limit: int, *, kind: str | None, author: str | None
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return up to `limit` events of a type, an author or both, with seq > `after`, and the seq to continue after
        (None on the last page). A page may have fewer although more follow. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, address)
        rows = await event_log.by_type_or_author(self._database, session.log, after, limit + 1, kind, author)
        found = [event_json(session.session_id, row) for row in rows[:limit]]
        if len(rows) > limit:
            return found, rows[limit - 1].seq
        end = after + event_log.SCAN_MAX
        return found, end if end < session.state.head else None


def event_json(session_id: UUID, row: StoredEvent) -> dict[str, Any]:
    """Return an event as it is shown to readers of the log."""
    return {
        "seq": row.seq,
        **row.value,
        "id": row.event_id or event_id(session_id, row.seq),
        "turn": row.turn,
        "tokens": row.tokens,
        "created_at": time_text(row.created_at),
    }


class Redaction:
    """Redacts events."""

    def __init__(self, database: Database, view_cache: ViewCache) -> None:
        self._database = database
        self._view_cache = view_cache

    async def redact(self, tenant_id: UUID, address: str, seq: int, key_id: UUID | None, prefix: str = "") -> None:
        """Replace an event by a tombstone. A repetition changes nothing.

        Every view is planned again at its next context; summaries that cover the event lose their text immediately, and
        a worker rewrites the live ones. The same applies to every fork that shares the event, which is redacted where
        it is stored. Injections and layers are not part of the log and stay until the session is erased, except a layer
        that became the event. Raises NotFound, or OutsidePrefix if a session that shares the event lacks the `prefix`.
        """
        session = await sessions.get(self._database, tenant_id, address)
        if seq < 1:
            raise NotFound(f"session {address!r} has no event {seq}", session=address, seq=seq)
        owner = address
        if (owner_id := await event_log.owner(self._database, session.log, seq)) != session.session_id:
            owner = await sessions.name_of(self._database, SessionRef(owner_id, tenant_id))
        async with self._database.transaction() as tx:
            sharing = await deletion.lock_family(tx, tenant_id, owner, seq=seq)
            if not sharing:
                raise NotFound(f"there is no session {address!r}", session=address)
            if not all(name.startswith(prefix) for name in sharing):
                raise OutsidePrefix(f"event {seq} is shared with sessions that this key may not access")
            refs = [session_ref(tenant_id, name) for name in sharing]
            announced = await layers.announced(tx, refs[0].session_id, seq)
            done = await log.redact_event(tx, refs[0].session_id, seq)
            if done == "missing":
                raise NotFound(f"session {address!r} has no event {seq}", session=address, seq=seq)
            for ref in refs if done == "erased" else ():
                await _forget(tx, ref, seq, key_id)
                if announced is not None:
                    await layers.redact_announcements(tx, ref.session_id, announced)
        for ref in refs:
            self._view_cache.forget(ref.session_id)


async def _forget(tx: Connection, ref: SessionRef, seq: int, key_id: UUID | None) -> None:
    """Erase all data that a session has derived from an event, its own or a shared one."""
    await log.note_redaction(tx, ref, seq, key_id)
    await views.redact_quotes(tx, ref.session_id, seq)
    await deletion.redact_terms(tx, ref, seq)
    await visibility.redact_decisions(tx, ref.session_id, seq)
    holes = await summaries.invalidate(tx, ref.session_id, seq)
    await views.reset_plans(tx, ref.session_id)
    if holes:
        await compactions.schedule(tx, ref, new_id(), "redaction")
