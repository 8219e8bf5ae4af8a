"""The lines of a session: the current one, their list, and rewinding to an earlier event; and forks of sessions.

A session's name means one of its lines, and moves to another one when its client continues elsewhere
(`resources/reconcile`) or requests an earlier seq. Only the name's row says which. Operations that run for every call
try the name's own row first, because most names never move; their statements are refused if the name has moved
(`LineChanged`). A process remembers moved names, and looks them up first.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.core.errors import Conflict, InvalidRequest, TooManyLines
from app.core.log.conversation import Tip
from app.core.log.events import Json
from app.core.log.segments import is_line, line_id, line_of, row_name, session_of
from app.core.memory.cover import cover_id
from app.core.policy.groups import SHOW_ALL
from app.resources.policies.service import Policies
from app.resources.sessions.service import SessionQuota, check_metadata
from app.store import deletion, forks, lines, sessions
from app.store.answers import ResponseToStore
from app.store.engine import Connection, Database
from app.store.forks import CutOff, Parent
from app.store.ids import SessionRef, session_ref
from app.store.lines import LineRow
from app.store.sessions import SessionRow, SessionSettings


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork or line, whether it is new, and the events it cuts off its last round."""

    row: SessionRow
    created: bool
    left_out: Sequence[CutOff]


class Forks:
    """Creates forks: sessions that begin with another session's log. A rewind is a fork at an older seq."""

    def __init__(self, database: Database, policies: Policies, quota: SessionQuota) -> None:
        self._database = database
        self._policies = policies
        self._quota = quota

    async def fork(
        self,
        tenant_id: UUID,
        address: str,
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
            origin = await forks.lock_parent(tx, tenant_id, address, at)
            created = await self.create(tx, origin, fork, metadata) is not None
            if created:
                await deletion.admit_name(tx, tenant_id, fork, has_metadata=bool(metadata))
                await self._quota.admit(tx, tenant_id)
            row = await sessions.get(tx, tenant_id, fork)
            parent, parent_at = row.parent or (None, 0)
            if not created and (parent != row_name(address) or at not in (None, parent_at)):
                detail = f"session {fork!r} exists, and is not a fork of {address!r} at this seq"
                raise Conflict(detail, session=fork)
            calls = [call.seq for call in origin.as_of.state.open_calls.values()]
            # Without `at`, `origin` is at the parent's head, which an existing fork may precede: its cut is not known.
            known = created or at is not None
            cut = await forks.cut_off_events(tx, origin.session.log, parent_at, calls) if known else []
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


MOVED_REMEMBERED_MAX: Final = 50_000
NAMES_TRIED_MAX: Final = 100


class Lines:
    """Resolves, lists, creates and rewinds the lines of sessions."""

    def __init__(self, database: Database, forking: Forks, lines_max: int) -> None:
        self._database = database
        self._forks = forking
        self._lines_max = lines_max
        self._moved: OrderedDict[tuple[UUID, str], None] = OrderedDict()

    async def current(self, tenant_id: UUID, address: str) -> str:
        """Return the line that an address means: itself if it names a line, or if the name has not moved."""
        if is_line(address):
            return address
        line = await lines.current_line(self._database, tenant_id, address)
        return address if line is None else line

    async def resolve_remembered(self, tenant_id: UUID, address: str, key: str | None = None) -> str:
        """Return the current line if this process knows that the name has moved, else the address itself.

        A request whose idempotency key was used before goes to the line where it was used.
        """
        if (tenant_id, address) not in self._moved:
            return address
        line = await self.current(tenant_id, address)
        if line == address:
            self._moved.pop((tenant_id, address), None)
        return await self._line_of_key(tenant_id, address, line, key)

    async def remember_moved(self, tenant_id: UUID, address: str, line: str, key: str | None = None) -> str:
        """Remember that a name has moved to a line, and return the line for a request with this key."""
        self._moved[tenant_id, address] = None
        if len(self._moved) > MOVED_REMEMBERED_MAX:
            self._moved.popitem(last=False)
        return await self._line_of_key(tenant_id, address, line, key)

    async def _line_of_key(self, tenant_id: UUID, address: str, line: str, key: str | None) -> str:
        found = None if key is None else await lines.of_key(self._database, tenant_id, address, key)
        return found or line

    async def of_call(self, tenant_id: UUID, address: str, call_id: UUID | None) -> str:
        """Return the line of a session on which a call was made; the current one if no call is named.

        If there is no such call, return the address itself.
        """
        if call_id is None or is_line(address):
            return await self.current(tenant_id, address)
        return await lines.of_call(self._database, tenant_id, address, call_id) or address

    async def page(self, tenant_id: UUID, address: str, after: int, limit: int) -> tuple[Sequence[LineRow], str]:
        """Return the lines of a session in order of creation, and the id of the current one. Raises NotFound."""
        name = session_of(address)
        row = await sessions.get(self._database, tenant_id, name)
        return await lines.page(self._database, tenant_id, name, after, limit), row.line or line_of(name)

    async def rewind(
        self, tenant_id: UUID, address: str, to: int, keep: ResponseToStore[Forked] | None = None
    ) -> Forked:
        """Point a session's name at a line that ends at seq `to` of the current one; return that line.

        If the current line ends there, it is returned. No line is removed. Raises NotFound, InvalidRequest, or
        TooManyLines, and AlreadyAnswered, having done nothing, if the key of `keep` has been used.
        """
        if is_line(address):
            raise InvalidRequest("only a session can be rewound: name it without its line", field="sid")
        async with self._database.transaction() as tx:
            root = await sessions.get_locked(tx, tenant_id, address)
            row = await current_row(tx, root)
            if to > row.state.head:
                raise InvalidRequest(f"`to` is {to}, but the session's last event is {row.state.head}", field="to")
            made = await self.branch(tx, root, row, to) if to < row.state.head else row
            calls = [call.seq for call in made.state.open_calls.values()]
            cut = await forks.cut_off_events(tx, row.log, to, calls) if made is not row else []
            rewound = Forked(await sessions.get_line(tx, tenant_id, made.external_id), made is not row, cut)
            if keep is not None:
                await keep.store(tx, rewound)
        return rewound

    async def branch(self, tx: Connection, root: SessionRow, row: SessionRow, at: int) -> SessionRow:
        """Create a line with the log of another one up to `at`, and point the name at it; both must be locked."""
        origin = await forks.as_parent(tx, row, at)
        tip = await lines.tip_at(tx, root, row, at)

        async def fork(line: str) -> SessionRef | None:
            return await self._forks.create(tx, origin, line, row.metadata)

        return await self._create(tx, root, tip, fork)

    async def switch_to(self, tx: Connection, root: SessionRow, row: SessionRow) -> None:
        """Point a session's name at an existing line. The session must be locked."""
        line = None if row.session_id == root.session_id else row.external_id
        await lines.set_current_line(tx, root.session_id, line)

    async def create_empty(self, tx: Connection, root: SessionRow, row: SessionRow) -> SessionRow:
        """Create an empty line with the settings of another one, and point the name at it; both must be locked."""

        async def create(line: str) -> SessionRef | None:
            settings = SessionSettings(row.model, row.policy, row.metadata, row.outside_tokens)
            made = await sessions.create(tx, root.tenant_id, line, settings, estimator=row.estimator)
            return session_ref(root.tenant_id, line) if made else None

        return await self._create(tx, root, Tip(), create)

    async def _create(
        self, tx: Connection, root: SessionRow, tip: Tip, make: Callable[[str], Awaitable[SessionRef | None]]
    ) -> SessionRow:
        """Create a line under the next free id, and point the name at it.

        Sessions older than lines may have such ids. Raises TooManyLines, which must roll the transaction back.
        """
        first = await lines.next_number(tx, root.session_id)
        if 0 < self._lines_max < first:
            raise TooManyLines(f"a session may have {self._lines_max} lines", limit=self._lines_max)
        for number in range(first, first + NAMES_TRIED_MAX):
            ref = await make(line_id(root.external_id, number))
            if ref is not None:
                await lines.add(tx, ref.session_id, root.session_id, number, tip)
                row = await sessions.lock(tx, ref)
                if row is None:
                    raise RuntimeError("a line that was just made is not there")
                await lines.set_current_line(tx, root.session_id, row.external_id)
                return row
        raise Conflict("the ids of this session's next lines are taken")


async def lock_or_create(
    tx: Connection, tenant_id: UUID, address: str, quota: SessionQuota, *, estimator: str, model: str | None = None
) -> SessionRow:
    """Lock and return a session's own row, created if it is new, or the row of a line.

    Raises InvalidRequest for a line that does not exist, Conflict for a session that is being erased, SessionErased,
    or TooManySessions, which must roll the transaction back.
    """
    ref = session_ref(tenant_id, address)
    row = await sessions.lock(tx, ref)
    if row is None:
        sessions.check_name(address)
        if await sessions.create(tx, tenant_id, address, SessionSettings(model), estimator=estimator):
            await deletion.admit_name(tx, tenant_id, address, has_metadata=False)
            await quota.admit(tx, tenant_id)
        row = await sessions.lock(tx, ref)
    if row is None:
        raise Conflict(f"session {address!r} is being erased")
    return row


async def current_row(tx: Connection, root: SessionRow) -> SessionRow:
    """Lock and return the row of the line that a session's name means; `root` is the name's own row, already locked."""
    if root.line is None:
        return root
    return await sessions.get_locked(tx, root.tenant_id, root.line)
