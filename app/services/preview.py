"""What the next context would be, with whatever settings, budget or head: planned and rendered, and never recorded."""

from dataclasses import fields
from datetime import UTC, datetime
from uuid import UUID

from app.core.audit.replay_call import ReplayedCall
from app.core.log.events import Json
from app.core.render.request import Request
from app.services.answers import answer, call_row, opened
from app.services.assembly import Assembly
from app.services.explaining import Explaining
from app.services.rendering import ContextInputs, ContextRequest, Rendered
from app.store import audit
from app.store.audit import UNWRITTEN, CallRow, StoredEpoch
from app.store.calls import CallRecord, NewCall, NewEpoch
from app.store.engine import Database


class Preview:
    """The preview use case."""

    def __init__(self, database: Database, assembly: Assembly, explaining: Explaining) -> None:
        self._database = database
        self._assembly = assembly
        self._explaining = explaining

    async def context(
        self, tenant_id: UUID, external_id: str, request: ContextRequest, diff_with: UUID | None = None
    ) -> str:
        """The answer's JSON: that of the call, without an id, and `cause`: why it would open its epoch, if it would.

        With `diff_with`, `diff` says what differs from that recorded call to this one. `wait_ms` has no effect, since
        nothing is asked to be summarized. Raises what a context raises, and what a diff of two calls does.
        """
        job, rendered = await self._assembly.planned(tenant_id, external_id, request)
        new = opened(job, rendered)
        call = call_row(job, rendered, new.epoch if new else job.loaded.epoch)
        extra: dict[str, Json] = {"preview": True, "cause": new.cause if new else None}
        if diff_with is not None:
            extra["diff"] = await self._explaining.against(
                tenant_id,
                external_id,
                diff_with,
                _recorded(call),
                await self._epoch(job, call, new),
                job.settings.policy,
                _again(rendered),
            )
        return answer(external_id, job, rendered, call, job.loaded.compaction, extra)

    async def _epoch(self, job: ContextInputs, call: NewCall, new: NewEpoch | None) -> StoredEpoch:
        if new is not None:
            return StoredEpoch(new.epoch, new.head, new.cause, None, new.frontier)
        found = await audit.epochs_of(self._database, job.loaded.session_id, [(call.view, call.epoch)])
        return found.get((call.view, call.epoch), UNWRITTEN)


def _again(rendered: Rendered) -> ReplayedCall:
    request = Request(rendered.request, rendered.sha256, rendered.prefix_sha256, rendered.breakpoints)
    return ReplayedCall(rendered.plan.context, rendered.layout, request)


def _recorded(call: NewCall) -> CallRow:
    """The call as it would be recorded."""
    known = {field.name: getattr(call, field.name) for field in fields(CallRecord)}
    return CallRow(**known, created_at=datetime.now(UTC), expires_at=None, outcome=None)
