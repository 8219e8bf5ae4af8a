"""Creation, reading and erasure of sessions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from app.core.errors import InvalidRequest, NotFound
from app.core.log.events import Json, canonical_json
from app.core.log.segments import is_line, session_of
from app.core.policy.policy import Policy
from app.core.tokens.budget import own_budget
from app.resources.counting import Counting
from app.resources.policies.service import Policies
from app.resources.sessions.limits import SessionQuota
from app.store import deletion, sessions, views
from app.store.engine import Connection, Database
from app.store.ids import session_ref
from app.store.rows import parameters
from app.store.session_filter import ListPosition, SessionFilter
from app.store.sessions import SessionRow, SessionSettings, ViewBudget
from app.store.spans import MAIN
from app.store.views import ListedEpoch

METADATA_BYTES_MAX = 65_536


@dataclass(eq=False)
class Sessions:
    """Creates, changes, reads and erases sessions."""

    _database: Database
    _counting: Counting
    _policies: Policies
    _quota: SessionQuota

    async def put(
        self,
        tenant_id: UUID,
        external_id: str,
        *,
        model: str | None,
        policy: str | Mapping[str, Any] | None,
        metadata: Mapping[str, Json] | None,
        outside_tokens: int | None = None,
    ) -> tuple[SessionRow, bool]:
        """Create or change a session; return it, and whether it is new.

        A new policy applies to the main view and to every view with the session's policy: they are planned again at
        their next context. Views with a policy of their own keep it. Raises InvalidRequest, NotFound, InvalidPolicy or
        CannotFit if policy, model and outside tokens together leave no room, TooManySessions, or SessionErased if the
        name was erased and no metadata is given.
        """
        if metadata is not None:
            check_metadata(metadata)
        policy_ref = None if policy is None else await self._policies.resolve(tenant_id, policy)
        given = SessionSettings(model, policy_ref, metadata, outside_tokens)
        created = False
        if not await self._change(tenant_id, external_id, given):
            created = await self._create(tenant_id, external_id, given)
            if not created:
                await self._change(tenant_id, external_id, given)
        if metadata is not None and is_line(external_id):  # filters also read the session's own row
            await self._change(tenant_id, session_of(external_id), SessionSettings(metadata=metadata))
        return await sessions.get_line(self._database, tenant_id, external_id), created

    async def _create(self, tenant_id: UUID, external_id: str, given: SessionSettings) -> bool:
        """Create a session; return False if it exists. Raises InvalidRequest for a name reserved for lines."""
        sessions.check_name(external_id)
        policy_ref = given.policy or ("default", 1)
        self._view_budget(await self._policies.get(tenant_id, policy_ref), given.model, given.outside_tokens)
        estimator = self._counting.estimator(given.model).name
        async with self._database.transaction() as tx:
            created = await sessions.create(
                tx, tenant_id, external_id, estimator=estimator, **parameters(replace(given, policy=policy_ref))
            )
            if created:
                await deletion.admit_name(tx, tenant_id, external_id, has_metadata=given.metadata is not None)
                await self._quota.admit(tx, tenant_id)
        return created

    async def _change(self, tenant_id: UUID, external_id: str, given: SessionSettings) -> bool:
        """Change a session; return False if there is none."""
        ref = session_ref(tenant_id, external_id)
        estimator = None if given.model is None else self._counting.estimator(given.model).name
        async with self._database.transaction() as tx:
            session = await sessions.lock(tx, ref)
            if session is None:
                return False
            await self._check_budgets(tx, session, given)
            await sessions.update(tx, ref.session_id, given, estimator)
        return True

    async def _check_budgets(self, tx: Connection, session: SessionRow, given: SessionSettings) -> None:
        """Check that the changed settings leave room for contexts, and give a new policy to the views that use the old.

        Raises what `_view_budget` raises. Settings that do not change are not checked.
        """
        old = session.policy, session.model, session.outside_tokens
        policy_ref, model = given.policy or session.policy, given.model or session.model
        outside = session.outside_tokens if given.outside_tokens is None else given.outside_tokens
        if (policy_ref, model, outside) == old:
            return
        policy = await self._policies.get(session.tenant_id, policy_ref, tx)
        self._view_budget(policy, model, outside)
        if (policy_ref, outside) == (session.policy, session.outside_tokens):
            return  # a new model concerns only views without one of their own, whose budget was just checked
        has_new_policy = policy_ref != session.policy
        for view, view_model in (await sessions.lock_views_on_policy(tx, session, main=has_new_policy)).items():
            budget = self._view_budget(policy, view_model or model, outside)
            if has_new_policy:
                await sessions.set_view_policy(tx, session.session_id, view, policy_ref, budget)

    def _view_budget(self, policy: Policy, model: str | None, outside: int | None) -> ViewBudget:
        """Return the window and target of a view with this policy and model, less the tokens `outside` its requests.

        Raises InvalidPolicy when the reserves leave nothing, CannotFit when the tokens outside take the rest.
        """
        margin = self._counting.counter(model, policy).estimator.margin
        budget = own_budget(policy, model, margin, outside=outside)
        return ViewBudget(budget.window, budget.target)

    async def get(self, tenant_id: UUID, external_id: str) -> SessionRow:
        """Return a session. Raises NotFound."""
        return await sessions.get_line(self._database, tenant_id, external_id)

    async def page(
        self,
        tenant_id: UUID,
        limit: int,
        after: ListPosition | None,
        asked: SessionFilter,
    ) -> tuple[list[SessionRow], ListPosition | None]:
        """Return sessions, newest first, and the place to continue from if the page is short but more may follow."""
        return await sessions.page(self._database, tenant_id, limit, after, asked)

    async def erase(self, tenant_id: UUID, external_id: str, *, forks: bool = False, prefix: str = "") -> None:
        """Erase a session and all its data, and its forks if `forks`.

        Raises NotFound, Conflict naming the forks if they must stay, or OutsidePrefix if a name lacks the `prefix`.
        """
        erased = await deletion.erase(self._database, tenant_id, external_id, forks=forks, prefix=prefix)
        if not erased:
            raise NotFound(f"there is no session {external_id!r}", session=external_id)
        self._quota.note_erasure(tenant_id)

    async def epochs(self, tenant_id: UUID, external_id: str, view: str, after: int, limit: int) -> list[ListedEpoch]:
        """Return the epochs of a view; `main` exists from the start. Raises NotFound."""
        row = await sessions.get(self._database, tenant_id, external_id)
        found = await views.page_of_epochs(self._database, row.session_id, view, after, limit)
        if not found and view != MAIN and await views.current_epoch(self._database, row.session_id, view) is None:
            raise NotFound(f"session {external_id!r} has no view {view!r} yet", session=external_id, view=view)
        return found


def check_metadata(metadata: Mapping[str, Json]) -> None:
    """Check metadata. Raises InvalidRequest for values that cannot be stored."""
    try:
        text = canonical_json(metadata)
        size = len(text.encode())
    except (ValueError, RecursionError):
        raise InvalidRequest(
            "metadata contains a value that JSON cannot hold, or is nested too deeply", field="metadata"
        ) from None
    if size > METADATA_BYTES_MAX:
        raise InvalidRequest(f"metadata takes {size} bytes, at most {METADATA_BYTES_MAX}", field="metadata")
    if "\\u0000" in text:
        raise InvalidRequest("metadata holds a NUL character", field="metadata")
