"""Comparison of contexts: two recorded calls, an event in the calls since, and a preview of the next context."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Body, Depends, Path, Query, Response

from app.core.assembly.assemble import Assembled, CallRecord, NewCall, reason_not_shown
from app.core.assembly.inputs import ContextRequest
from app.core.errors import InvalidRequest
from app.core.log.events import Json
from app.core.record import ReplayedCall
from app.http import paging
from app.http.fields import Cursor, Limit, RecordedCall, Sid, ViewIfAny, answer_of
from app.http.operation import PastService, Resource, Who, past_service, service
from app.resources.contexts.routes import PROBLEM_SLUGS, ContextResponse, check_fields, context_request, response_of
from app.resources.contexts.schemas import ContextIn
from app.resources.contexts.service import Assembly
from app.resources.feedback.service import Feedback
from app.store.audit import EPOCH_ZERO, CallRow, StoredEpoch, epochs_of
from app.store.engine import Database
from app.wings.compare.schemas import DiffOut, HistoryPage, PreviewDiff, PreviewOut, PreviewRef
from app.wings.compare.service import ComparedCall, Comparisons


class Preview:
    """Plans and renders contexts without recording them."""

    def __init__(self, database: Database, assembly: Assembly, comparisons: Comparisons) -> None:
        self._database = database
        self._assembly = assembly
        self._comparisons = comparisons

    async def context(
        self, tenant_id: UUID, external_id: str, request: ContextRequest, diff_with: UUID | None = None
    ) -> tuple[Assembled, DiffOut | None]:
        """Return the context that the request would return, and its differences from the recorded call `diff_with`.

        `wait_ms` has no effect, since a preview schedules no summary. Raises the errors of a context, and of a diff of
        two calls.
        """
        assembled = await self._assembly.plan(tenant_id, external_id, request)
        if diff_with is None:
            return assembled, None
        rendered = assembled.rendered
        planned = ComparedCall(
            _planned_row(assembled.call),
            await self._epoch(assembled),
            assembled.inputs.settings.policy,
            ReplayedCall(rendered.plan.context, rendered.layout, rendered.request),
        )
        return assembled, await self._comparisons.diff_to(tenant_id, external_id, diff_with, planned)

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


def _json(session: str, assembled: Assembled, difference: DiffOut | None) -> bytes:
    """Return the response: a context without a call's id, and with the cause of the epoch it would open."""
    made = response_of(session, assembled, assembled.inputs.loaded.compaction, reason_not_shown(assembled))
    more: dict[str, Json] = {"preview": True, "cause": assembled.epoch and assembled.epoch.cause}
    if difference is not None:
        b = answer_of(PreviewRef, difference.b, call_id=None, created_at=None)
        diff = answer_of(PreviewDiff, difference, b=b)
        more["diff"] = diff.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return ContextResponse({**made.before, "call_id": None}, made.request, {**made.after, **more}).json()


router = Resource("audit", scope="read")

OtherCallId = Annotated[UUID, Path(description="Id of the recorded call to compare with.")]
Seq = Annotated[int, Path(ge=1, le=2**63 - 1, description="Seq of the event.")]
Calls = Annotated[PastService[Comparisons], Depends(past_service(Comparisons))]


@router.operation(
    "GET",
    "/v1/sessions/{sid}/calls/{call_id}/diff/{other_id}",
    summary="Compare two calls",
    problems=("not-reproducible",),
)
async def diff_calls(sid: Sid, call_id: RecordedCall, other_id: OtherCallId, who: Who, calls: Calls) -> DiffOut:
    """Compare two calls of a session: the events that the second shows differently, the reasons, and the tokens."""
    return await calls(lambda own: own.diff(who.tenant_id, sid, call_id, other_id))


@router.operation("GET", "/v1/sessions/{sid}/events/{seq}/history", returns=HistoryPage, problems=("not-reproducible",))
async def get_event_history(
    sid: Sid, seq: Seq, who: Who, calls: Calls, view: ViewIfAny = None, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List how the context of each call since an event was logged has shown it, oldest first, and why."""
    after = paging.decode_id(cursor)
    found = await calls(lambda own: own.history(who.tenant_id, sid, seq, view=view, after=after, limit=limit + 1))
    return paging.page(found, limit, lambda item: item.call_id)


previews = Resource("context", scope="read")


@previews.operation(
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
    check_fields(body)
    for field in ("messages", "append", "outcome"):
        if getattr(body, field) is not None:
            raise InvalidRequest(f"a preview records nothing, so it cannot have {field}", field=field)
    asked = await context_request(body, who, sid, feedback)
    made = await preview.context(who.tenant_id, sid, asked, diff_with)
    return Response(_json(sid, *made), media_type="application/json")
