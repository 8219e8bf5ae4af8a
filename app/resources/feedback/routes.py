"""Feedback: outcomes of calls, and the calibrations learned from them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Depends, Query, Request, Response

from app.core.assembly.inputs import OBSERVED_VIEW
from app.core.errors import InvalidRequest
from app.core.log.segments import session_of
from app.http import paging
from app.http.auth import PrefixAccess
from app.http.fields import Cursor, Limit
from app.http.openapi import body_of_model, parameter
from app.http.operation import Idempotency, Resource, Who, idempotency_key, service
from app.http.requests import read_model
from app.resources.contexts.schemas import ContextIn
from app.resources.feedback import schemas
from app.resources.feedback.measurements import Verdict
from app.resources.feedback.service import Feedback

router = Resource("feedback", schemas=(schemas.OutcomeIn,))

Service = Annotated[Feedback, Depends(service(Feedback))]
NOTHING_TO_DO: Final = schemas.OutcomeOut(overflow=False, action="none")
_CALL_ID: Final = parameter("call_id", "path", {"type": "string", "format": "uuid"}, "Id of the recorded call.")


@router.operation(
    "POST",
    "/v1/sessions/{sid}/calls/{call_id}/outcome",
    scope="ingest",
    resolves_line=False,
    returns=schemas.OutcomeOut,
    problems=("conflict", "idempotency-conflict"),
    openapi_extra=body_of_model(schemas.OutcomeIn, _CALL_ID),
)
async def report_outcome(request: Request, who: Who) -> Response:
    """Report the outcome of a call: its token usage, its duration, or its error. The response says what to do next.

    Repeating a report returns the same response. A different report is accepted only after an error that was not an
    overflow, since a client may have sent such a request again.
    """
    sid, key = request.path_params["sid"], idempotency_key(request)
    try:
        call_id = UUID(request.path_params["call_id"])
    except ValueError:
        raise InvalidRequest("call_id must be a UUID", field="call_id") from None
    body = await read_model(request, schemas.OutcomeIn)
    feedback: Feedback = request.state.services.feedback

    async def reported() -> schemas.OutcomeOut:
        return outcome_out(session_of(sid), await feedback.report(who.tenant_id, sid, call_id, body.report()))

    once = Idempotency(request, who, body, key)
    return await once.run_repeatable(schemas.OutcomeOut, reported, nulls=False)


@router.operation("GET", "/v1/calibrations", scope="read", access=PrefixAccess.TENANT, returns=schemas.CalibrationPage)
async def list_calibrations(
    who: Who, feedback: Service, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the calibrations: how each model counts tokens, as learned from reported usage."""
    rows = await feedback.calibrations(who.tenant_id, limit + 1, _after(cursor))
    return paging.page(rows, limit, lambda row: (row.model, row.estimator))


@router.operation(
    "DELETE", "/v1/calibrations", scope="admin", access=PrefixAccess.TENANT, summary="Forget calibrations"
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
) -> schemas.CalibrationsForgotten:
    """Forget how models count tokens and how large their windows are, for all models or for those selected.

    Views keep the corrections learned from their own calls.
    """
    return schemas.CalibrationsForgotten(forgotten=await feedback.forget(who.tenant_id, model, estimator))


def outcome_out(session: str, verdict: Verdict) -> schemas.OutcomeOut:
    """Return the response to a report."""
    call, outcome = verdict.call, verdict.outcome
    if not outcome.overflow:
        return NOTHING_TO_DO
    pattern = (outcome.error or {}).get("overflow")
    matched = None if pattern is None else schemas.MatchedOut.model_validate(pattern)
    if call.retry_of is not None or call.view == OBSERVED_VIEW:
        return schemas.OutcomeOut(overflow=True, action="stop", matched=matched)
    retry = ContextIn(
        retry_of=call.call_id,
        view=call.view,
        format=call.format,
        model=call.model,
        max_tokens=call.manifest.window,
        wait_ms=verdict.wait_ms,
    )
    body = retry.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    then = schemas.NextOut(method="POST", path=f"/v1/sessions/{session}/context", body=body)
    return schemas.OutcomeOut(overflow=True, action="retry", matched=matched, next=then)


def _after(cursor: str | None) -> tuple[str, str] | None:
    names = paging.decode_names(cursor, 2)
    return None if names is None else (names[0], names[1])
