"""Decisions to hide, show and pin events: judged by a view, recorded for the whole session.

Nothing is rendered, and only decisions are recorded: events that a view's policy has evicted stay evicted. Each view
applies the decisions in its next context, with a new epoch if they change that context.
"""

import asyncio
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.core.assembly.inputs import ContextInputs, ContextRequest, plan_inputs
from app.core.assembly.visibility import VisibilityInput, VisibilityOutcome, VisibilityRequest, decide
from app.core.errors import Conflict
from app.core.plan.update import update_context
from app.resources.contexts.service import Assembly
from app.store import event_log, sessions, visibility
from app.store.engine import Database
from app.store.event_log import SessionLog

ATTEMPTS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class VisibilityResult:
    """The results of a request, the head at that time, and the number of the session's decisions so far."""

    head: int
    decisions: int
    outcome: VisibilityOutcome


class Visibility:
    """Decides the visibility of events."""

    def __init__(self, database: Database, assembly: Assembly) -> None:
        self._database = database
        self._assembly = assembly

    async def decide(self, tenant_id: UUID, external_id: str, view: str, asked: VisibilityRequest) -> VisibilityResult:
        """Decide each item separately; a repetition changes nothing. Raises NotFound, InvalidPolicy or Conflict.

        The session is read without a lock: after a concurrent decision, everything is decided again.
        """
        for _ in range(ATTEMPTS_MAX):
            inputs = await self._assembly.load_inputs(tenant_id, external_id, ContextRequest(view=view))
            outcome = await self._outcome(inputs, asked)
            async with self._database.transaction() as tx:
                session = await sessions.get_locked(tx, tenant_id, external_id)
                if session.decisions != inputs.loaded.decisions:
                    continue
                if not outcome.decisions:
                    return VisibilityResult(session.state.head, session.decisions, outcome)
                await visibility.record(tx, session, outcome.decisions)
            return VisibilityResult(session.state.head, session.decisions + 1, outcome)
        raise Conflict("concurrent decisions kept changing this session; retry the request")

    async def _outcome(self, inputs: ContextInputs, asked: VisibilityRequest) -> VisibilityOutcome:
        loaded = inputs.loaded
        bare = [event.seq for event in loaded.events if event.body is None]
        paths = await event_log.paths(self._database, SessionLog(loaded.session_id), bare) if bare else {}

        def look() -> VisibilityOutcome:
            read, state = plan_inputs(inputs)
            policy = inputs.settings.policy
            now = update_context(read, inputs.budget, policy, state)
            given = VisibilityInput(
                context=now.context,
                state=now.state,
                decided=loaded.decided,
                pinned=frozenset(loaded.pinned),
                head=loaded.head,
                budget=inputs.budget,
                rules=policy.visibility,
                cache=inputs.cache,
                warm=read.is_warm(now.context),
                paths=paths,
            )
            return decide(asked, given)

        return await asyncio.to_thread(look)
