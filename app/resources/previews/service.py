"""Previews: contexts with any settings, budget or head, planned and rendered but not recorded."""

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from uuid import UUID

from app.core.assembly.assemble import Assembled, CallRecord, NewCall
from app.core.assembly.inputs import ContextRequest
from app.core.audit.replay_call import ReplayedCall
from app.resources.calls.explaining import CallDiff, Explaining
from app.resources.contexts.service import Assembly
from app.store import audit
from app.store.audit import EPOCH_ZERO, CallRow, StoredEpoch
from app.store.engine import Database


@dataclass(frozen=True, slots=True)
class PreviewAnswer:
    """A previewed context, and its differences from a recorded call if requested."""

    assembled: Assembled
    diff: CallDiff | None = None


class Preview:
    """Plans and renders contexts without recording them."""

    def __init__(self, database: Database, assembly: Assembly, explaining: Explaining) -> None:
        self._database = database
        self._assembly = assembly
        self._explaining = explaining

    async def context(
        self, tenant_id: UUID, external_id: str, request: ContextRequest, diff_with: UUID | None = None
    ) -> PreviewAnswer:
        """Return the context that the request would return.

        `diff` has the differences from the recorded call `diff_with` to this one. `wait_ms` has no effect, since a
        preview schedules no summary. Raises the errors of a context, and of a diff of two calls.
        """
        assembled = await self._assembly.plan(tenant_id, external_id, request)
        if diff_with is None:
            return PreviewAnswer(assembled)
        rendered = assembled.rendered
        diff = await self._explaining.diff_planned(
            tenant_id,
            external_id,
            diff_with,
            _recorded(assembled.call),
            await self._epoch(assembled),
            assembled.inputs.settings.policy,
            ReplayedCall(rendered.plan.context, rendered.layout, rendered.request),
        )
        return PreviewAnswer(assembled, diff)

    async def _epoch(self, assembled: Assembled) -> StoredEpoch:
        new, call = assembled.epoch, assembled.call
        if new is not None:
            return StoredEpoch(new.epoch, new.head, new.cause, None, new.frontier)
        found = await audit.epochs_of(self._database, assembled.inputs.loaded.session_id, [(call.view, call.epoch)])
        return found.get((call.view, call.epoch), EPOCH_ZERO)


def _recorded(call: NewCall) -> CallRow:
    """Return the record that the call would have."""
    known = {field.name: getattr(call, field.name) for field in fields(CallRecord)}
    return CallRow(**known, created_at=datetime.now(UTC), expires_at=None, reported_at=None, outcome=None)
