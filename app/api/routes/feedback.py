"""Feedback: outcomes of calls, and the calibrations learned from them."""

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Path, Query, Request

from app.api import paging
from app.api.idempotency import Idempotency, Key
from app.api.key_prefix import PrefixAccess
from app.api.metrics import observe_report
from app.api.operation import Resource, Who, service
from app.api.schemas.common import Cursor, Limit, Sid
from app.api.schemas.feedback import CalibrationPage, CalibrationsForgotten, OutcomeIn, OutcomeOut
from app.core.log.segments import session_of
from app.services.feedback import Feedback, Report, Verdict

router = Resource("feedback")


Service = Annotated[Feedback, Depends(service(Feedback))]
Id = Annotated[UUID, Path(description="Id of the recorded call.")]


@router.operation(
    "POST",
    "/v1/sessions/{sid}/calls/{call_id}/outcome",
    scope="ingest",
    returns=OutcomeOut,
    problems=("not-found", "conflict", "idempotency-conflict"),
    response_model_exclude_none=True,
)
async def report_outcome(
    request: Request, sid: Sid, call_id: Id, body: OutcomeIn, who: Who, feedback: Service, key: Key = None
) -> Mapping[str, Any]:
    """Report the outcome of a call: its token usage, its duration, or its error. The response says what to do next.

    Repeating a report returns the same response. A different report is accepted only after an error that was not an
    overflow, since a client may have sent such a request again.
    """
    report = Report(
        None if body.usage is None else body.usage.model_dump(),
        body.latency_ms,
        None if body.error is None else body.error.model_dump(),
    )

    async def reported() -> Mapping[str, Any]:
        verdict = await feedback.report(who.tenant_id, sid, call_id, report)
        observe_report(verdict)
        return _out(session_of(sid), verdict)

    out: Mapping[str, Any] = await Idempotency(request, who, sid, key, body).run_repeatable(OutcomeOut, reported)
    return out


@router.operation("GET", "/v1/calibrations", scope="read", access=PrefixAccess.TENANT, returns=CalibrationPage)
async def list_calibrations(
    who: Who, feedback: Service, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the calibrations: how each model counts tokens, as learned from reported usage."""
    rows = await feedback.calibrations(who.tenant_id, limit + 1, _after(cursor))
    return paging.page(rows, limit, lambda row: (row.model, row.estimator))


@router.operation(
    "DELETE",
    "/v1/calibrations",
    scope="admin",
    access=PrefixAccess.TENANT,
    summary="Forget calibrations",
    returns=CalibrationsForgotten,
)
async def delete_calibrations(
    who: Who,
    feedback: Service,
    model: Annotated[
        str | None, Query(min_length=1, max_length=256, description="Name of a model: forget only its calibrations.")
    ] = None,
    estimator: Annotated[
        str | None,
        Query(min_length=1, max_length=64, description="Name of an estimator: forget only its calibrations."),
    ] = None,
) -> Mapping[str, Any]:
    """Forget how models count tokens and how large their windows are, for all models or for those selected.

    Views keep the corrections learned from their own calls.
    """
    return {"forgotten": await feedback.forget(who.tenant_id, model, estimator)}


def _out(session: str, verdict: Verdict) -> Mapping[str, Any]:
    call, outcome = verdict.call, verdict.outcome
    if not outcome.overflow:
        return {"overflow": False, "action": "none"}
    out = {"overflow": True, "action": "stop", "matched": (outcome.error or {}).get("overflow")}
    if call.retry_of is not None:
        return out
    body = {
        "retry_of": str(call.call_id),
        "view": call.view,
        "format": call.format,
        "model": call.model,
        "max_tokens": call.manifest.window,
        "wait_ms": verdict.wait_ms,
    }
    body = {name: value for name, value in body.items() if value is not None}
    return {
        **out,
        "action": "retry",
        "next": {"method": "POST", "path": f"/v1/sessions/{session}/context", "body": body},
    }


def _after(cursor: str | None) -> tuple[str, str] | None:
    names = paging.decode_names(cursor, 2)
    return None if names is None else (names[0], names[1])
