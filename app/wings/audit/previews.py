"""Previews: the next context with any settings, planned and rendered but not recorded."""

import asyncio
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import Body, Depends, Query, Response

from app.core.assembly.assemble import Assembled, CallRecord, NewCall, reason_not_shown, shown_evictions
from app.core.assembly.inputs import ContextRequest
from app.core.audit.moment import next_reduction
from app.core.errors import InvalidRequest
from app.core.log.events import Json
from app.core.log.segments import line_of
from app.core.record import ReplayedCall
from app.core.record.evictions import eviction_row
from app.http.fields import Sid, ViewParameter, answer_of
from app.http.operation import Resource, Who, service
from app.resources.contexts.json import ContextBody, body_of
from app.resources.contexts.routes import PROBLEM_SLUGS, check_alone, context_request
from app.resources.contexts.schemas import ContextIn
from app.resources.contexts.service import Assembly
from app.resources.feedback.service import Feedback
from app.store.audit import EPOCH_ZERO, CallRow, StoredEpoch, epochs_of
from app.store.engine import Database
from app.wings.audit.schemas import DiffOut, NextEvictionsOut, PreviewDiff, PreviewOut, PreviewRef
from app.wings.audit.service import Audit, ComparedCall


@dataclass(frozen=True, slots=True)
class PreviewAnswer:
    """A previewed context, and its differences from a recorded call if requested."""

    assembled: Assembled
    diff: DiffOut | None = None


class Preview:
    """Plans and renders contexts without recording them."""

    def __init__(self, database: Database, assembly: Assembly, audit: Audit) -> None:
        self._database = database
        self._assembly = assembly
        self._audit = audit

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
        planned = ComparedCall(
            _planned_row(assembled.call),
            await self._epoch(assembled),
            assembled.inputs.settings.policy,
            ReplayedCall(rendered.plan.context, rendered.layout, rendered.request),
        )
        return PreviewAnswer(assembled, await self._audit.diff_to(tenant_id, external_id, diff_with, planned))

    async def next_evictions(self, tenant_id: UUID, external_id: str, view: str, limit: int) -> NextEvictionsOut:
        """Return the first evictions of a view's next reduction. Raises NotFound, InvalidPolicy or CannotFit."""
        request = ContextRequest(view=view)
        inputs = await self._assembly.load_inputs(tenant_id, external_id, request, from_memory=True)
        found = await asyncio.to_thread(next_reduction, inputs)
        rows, shown = shown_evictions(inputs, found.evictions), inputs.budget.shown
        return answer_of(
            NextEvictionsOut,
            found,
            inputs.loaded,
            session=external_id,
            line=line_of(external_id),
            view=view,
            tokens=shown(found.tokens),
            threshold=shown(inputs.budget.trigger),
            target=inputs.budget.limit,
            tokens_after=shown(found.tokens_after),
            evictions=list(map(eviction_row, rows[:limit])),
            more=max(0, len(rows) - limit),
        )

    async def _epoch(self, assembled: Assembled) -> StoredEpoch:
        new, call = assembled.epoch, assembled.call
        if new is not None:
            return StoredEpoch(new.epoch, new.head, new.cause, None, new.frontier)
        found = await epochs_of(self._database, assembled.inputs.loaded.session_id, [(call.view, call.epoch)])
        return found.get((call.view, call.epoch), EPOCH_ZERO)


def _planned_row(call: NewCall) -> CallRow:
    """Return the record that the call would have."""
    known = {field.name: getattr(call, field.name) for field in fields(CallRecord)}
    return CallRow(**known, created_at=datetime.now(UTC), expires_at=None, reported_at=None, outcome=None)


def _json(session: str, preview: PreviewAnswer) -> bytes:
    """Return the response: a context without a call's id, and with the cause of the epoch it would open."""
    assembled = preview.assembled
    made = body_of(session, assembled, assembled.inputs.loaded.compaction, reason_not_shown(assembled))
    more: dict[str, Json] = {"preview": True, "cause": assembled.epoch and assembled.epoch.cause}
    if preview.diff is not None:
        b = answer_of(PreviewRef, preview.diff.b, call_id=None, created_at=None)
        diff = answer_of(PreviewDiff, preview.diff, b=b)
        more["diff"] = diff.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return ContextBody({**made.head, "call_id": None}, made.request, {**made.tail, **more}).json()


router = Resource("context", scope="read")


@router.operation(
    "POST",
    "/v1/sessions/{sid}/context:preview",
    summary="Preview the next context",
    returns=PreviewOut,
    problems=(*PROBLEM_SLUGS, "not-reproducible"),
)
async def preview_context(
    sid: Sid,
    body: Annotated[ContextIn, Body(default_factory=ContextIn)],
    who: Who,
    preview: Annotated[Preview, Depends(service(Preview))],
    feedback: Annotated[Feedback, Depends(service(Feedback))],
    diff_with: Annotated[UUID | None, Query(description="Id of a recorded call to compare the preview with.")] = None,
) -> Response:
    """Preview the context of the next model call with any policy, model, budget or head.

    Nothing is recorded or changed, and `wait_ms` has no effect.
    """
    check_alone(body)
    for field in ("messages", "append", "outcome"):
        if getattr(body, field) is not None:
            raise InvalidRequest(f"a preview records nothing, so it cannot have {field}", field=field)
    asked = await context_request(body, who, sid, feedback)
    answer = await preview.context(who.tenant_id, sid, asked, diff_with)
    return Response(_json(sid, answer), media_type="application/json")


FirstEvictions = Annotated[int, Query(ge=0, le=1000, description="Maximum number of evictions in the response.")]


@router.operation("GET", "/v1/sessions/{sid}/next-evictions", problems=("context-infeasible", "conflict"))
async def get_next_evictions(
    sid: Sid,
    who: Who,
    preview: Annotated[Preview, Depends(service(Preview))],
    view: ViewParameter = "main",
    limit: FirstEvictions = 20,
) -> NextEvictionsOut:
    """Get the next events that a view would leave out, and the reasons why it does not leave them out yet.

    They are those of a context just above its threshold, with the view's own policy, model and window.
    """
    return await preview.next_evictions(who.tenant_id, sid, view, limit)
