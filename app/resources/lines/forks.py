"""Forks: sessions that begin with another session's log. A rewind is a fork at an older seq."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from app.core.errors import Conflict
from app.core.log.events import Json
from app.core.log.segments import row_name
from app.core.memory.cover import cover_id
from app.core.policy.evictions import SHOW_ALL
from app.resources.policies.service import Policies
from app.resources.sessions.limits import SessionQuota
from app.resources.sessions.service import check_metadata
from app.store import erasure, forks, sessions
from app.store.answers import ResponseToStore
from app.store.engine import Connection, Database
from app.store.forks import CutOff, Parent
from app.store.ids import SessionRef
from app.store.sessions import SessionRow


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork or line, whether it is new, and the events it cuts off its last round."""

    row: SessionRow
    created: bool
    left_out: Sequence[CutOff]


class Forks:
    """Creates forks."""

    def __init__(self, database: Database, policies: Policies, quota: SessionQuota) -> None:
        self._database = database
        self._policies = policies
        self._quota = quota

    async def fork(
        self,
        tenant_id: UUID,
        external_id: str,
        fork: str,
        *,
        at: int | None,
        metadata: Mapping[str, Json],
        keep: ResponseToStore[Forked] | None = None,
    ) -> Forked:
        """Fork a session at `at` (None: its head) as `fork`.

        An existing fork is returned as it is now; `metadata` is for a new one. The parent is locked against appends
        meanwhile. Raises NotFound, InvalidRequest, TooManySessions, SessionErased for an erased name without
        `metadata`, Conflict if the name is another session's, and AlreadyAnswered, having done nothing, if the key of
        `keep` has been used.
        """
        check_metadata(metadata)
        sessions.check_name(fork, "id")
        async with self._database.transaction() as tx:
            origin = await forks.parent(tx, tenant_id, external_id, at)
            created = await self.create(tx, origin, fork, metadata) is not None
            if created:
                await erasure.admit_name(tx, tenant_id, fork, has_metadata=bool(metadata))
                await self._quota.admit(tx, tenant_id)
            row = await sessions.get(tx, tenant_id, fork)
            parent, parent_at = row.parent or (None, 0)
            if not created and (parent != row_name(external_id) or at not in (None, parent_at)):
                detail = f"session {fork!r} exists, and is not a fork of {external_id!r} at this seq"
                raise Conflict(detail, session=fork)
            calls = [call.seq for call in origin.as_of.state.open_calls.values()]
            # An existing fork, requested without a seq, may have been made before the session's current head.
            same = created or at is not None
            cut = await forks.cut_off_events(tx, origin.session.log, parent_at, calls) if same else []
            made = Forked(row, created, cut)
            if keep is not None:
                await keep.store(tx, made)
        return made

    async def create(
        self, tx: Connection, origin: Parent, fork: str, metadata: Mapping[str, Json]
    ) -> SessionRef | None:
        """Create the fork in a transaction; return its ids, None if the name is taken."""
        tenant_id, from_id = origin.session.tenant_id, origin.session.session_id
        policy_refs = await forks.policies_of(tx, from_id)
        shown = {(await self._policies.get(tenant_id, ref, tx)).shows for ref in policy_refs}
        made = await forks.create(tx, origin, fork, metadata)
        if made is None:
            return None
        fork_id = made.session_id
        covers = {cover_id(from_id, one): cover_id(fork_id, one) for one in {SHOW_ALL, *shown}}
        readable = await forks.copy_summaries(tx, origin, fork_id, covers)
        await forks.copy_views(tx, origin, fork_id, readable)
        return made
