"""Redaction: the one change to the log. What an event said is destroyed, and all that was derived from it."""

from uuid import UUID

from app.core.errors import NotFound, OutOfReach
from app.services.ids import new_id
from app.services.snapshots import SessionSnapshots
from app.services.view_cache import ViewCache
from app.store import compactions, epochs, event_log, layers, log, search, sessions, summaries, visibility
from app.store.engine import Connection, Database


class Redaction:
    """The redaction use case."""

    def __init__(self, database: Database, snapshots: SessionSnapshots, view_cache: ViewCache) -> None:
        self._database = database
        self._snapshots = snapshots
        self._view_cache = view_cache

    async def redact(self, tenant_id: UUID, external_id: str, seq: int, key_id: UUID | None, prefix: str = "") -> None:
        """Leave a tombstone in the place of an event. Once more changes nothing.

        Raises NotFound, or OutOfReach when a session shares the event whose name does not begin with `prefix`.

        Every view is planned afresh by its next call, every summary over the event loses its text at once and is
        written anew by a worker. The same in every fork that shares the event; asked of a fork for what it shares, it
        is done where the event stands. What calls injected is no part of the log, nor are layers, but for one that
        became the event: they go with their session.
        """
        session = await sessions.get(self._database, tenant_id, external_id)
        if seq < 1:
            raise NotFound(f"session {external_id!r} has no event {seq}", session=external_id, seq=seq)
        owner = external_id
        if (owner_id := await event_log.owner(self._database, session.log, seq)) != session.session_id:
            owner = await sessions.name_of(self._database, owner_id, tenant_id)
        async with self._database.transaction() as tx:
            sharing = await sessions.family(tx, tenant_id, owner, seq=seq)
            if not sharing:
                raise NotFound(f"there is no session {external_id!r}", session=external_id)
            if not all(name.startswith(prefix) for name in sharing):
                raise OutOfReach(f"event {seq} is shared with sessions that this key is not for")
            session_ids = [sessions.session_key(tenant_id, name) for name in sharing]
            said = await layers.announced(tx, session_ids[0], seq)
            done = await log.redact(tx, session_ids[0], seq)
            if done is None:
                raise NotFound(f"session {external_id!r} has no event {seq}", session=external_id, seq=seq)
            for session_id in session_ids if done else ():
                await _forget(tx, session_id, tenant_id, seq, key_id)
                if said is not None:
                    await layers.forget(tx, session_id, said)
        for session_id in session_ids:
            self._view_cache.forget(session_id)
            self._snapshots.forget(session_id)


async def _forget(tx: Connection, session_id: UUID, tenant_id: UUID, seq: int, key_id: UUID | None) -> None:
    """Destroy what a session derived from an event, its own or one that it shares."""
    await log.note_redaction(tx, session_id, tenant_id, seq, key_id)
    await epochs.unquote(tx, session_id, seq)
    await search.forget(tx, session_id, tenant_id, seq)
    await visibility.forget(tx, session_id, seq)
    holes = await summaries.invalidate(tx, session_id, seq)
    await epochs.plan_afresh(tx, session_id)
    if holes:
        await compactions.schedule(tx, session_id, tenant_id, new_id(), "redaction")
