"""Feedback: outcomes of calls, and the calibrations learned from them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from app.core.log.segments import session_of
from app.http import paging
from app.http.auth import PrefixAccess
from app.http.fields import Cursor, LenientText, Limit, NextCursor, Sid, StrictRequest, UpdatedAt
from app.http.idempotency import Idempotent
from app.http.operation import Resource, Who, service
from app.resources.contexts.schemas import ContextIn
from app.resources.feedback.service import Feedback, Report, Verdict

Count = Annotated[int | None, Field(ge=0, le=2**31 - 1)]


class UsageIn(StrictRequest):
    """Token usage of a call, as reported by the provider. Omitted figures count as not reported."""

    input_tokens: Count = Field(
        None,
        description="Input tokens as the provider reports them: in the format `anthropic` without those read from or "
        "written to the cache, in other formats all of them.",
    )
    cache_read_tokens: Count = Field(None, description="Input tokens that were read from the provider's cache.")
    cache_write_tokens: Count = Field(None, description="Input tokens that were written to the provider's cache.")
    output_tokens: Count = Field(None, description="Tokens of the model's answer.")


class ErrorIn(StrictRequest):
    """Error that the provider returned. Its text shows whether the context was too long."""

    unchecked_text = frozenset({"message", "code"})

    status: int | None = Field(None, ge=100, le=999, description="HTTP status of the provider's response.")
    message: LenientText | None = Field(
        None, max_length=1_000_000, description="Text of the error, as the provider wrote it."
    )
    code: LenientText | None = Field(None, max_length=1_000, description="Provider's code or type of the error.")


class OutcomeIn(StrictRequest):
    """Outcome of a call. At least one of the fields must be given."""

    unchecked_text = frozenset({"error"})

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"usage": {"input_tokens": 1200, "cache_read_tokens": 52000, "output_tokens": 310}, "latency_ms": 2100},
                {"error": {"status": 400, "message": "prompt is too long: 215000 tokens > 200000 maximum"}},
            ]
        },
    )

    usage: UsageIn | None = Field(None, description="Token usage, from which the server learns how the model counts.")
    latency_ms: Count = Field(None, description="Duration of the call in milliseconds.")
    error: ErrorIn | None = Field(None, description="Error that the provider returned. Omit it after a success.")


class NextOut(BaseModel):
    """Request for a smaller context with which to retry the call."""

    method: str = Field(description="HTTP method of the request.")
    path: str = Field(description="Path of the request.")
    body: dict[str, Any] = Field(description="JSON body of the request: parameters as in `ContextIn`.")


class MatchedOut(BaseModel):
    """Pattern by which an error was recognized as an overflow, and the figures that its message names."""

    set: str = Field(description="Name of the set of patterns, such as `anthropic` or `openai`.")
    pattern: str = Field(description="Regular expression that matched.")
    tokens: int | None = Field(None, description="Input tokens that were sent; absent if the message names none.")
    window: int | None = Field(None, description="Context window of the model in tokens; absent if it names none.")
    answer: int | None = Field(
        None, description="Tokens that the request reserved for the answer; absent if it names none."
    )


class OutcomeOut(BaseModel):
    """Verdict on a reported outcome: what to do next."""

    overflow: bool = Field(description="Whether the error means that the context was too long.")
    action: Literal["none", "retry", "stop"] = Field(
        description="Next step: `retry` (once, with the smaller context that `next` requests), `stop` (the call was "
        "already such a retry) or `none` (there was no error, or one that a smaller context does not fix)."
    )
    next: NextOut | None = Field(None, description="Request to send for the retry; absent unless `action` is `retry`.")
    matched: MatchedOut | None = Field(
        None, description="Pattern by which an overflow was recognized; absent if it was not one."
    )


class CalibrationOut(BaseModel):
    """Calibration of an estimator to a model, learned from reported usage."""

    model: str = Field(description="Name of the model.")
    estimator: str = Field(description="Name of the estimator, such as `tiktoken:o200k_base`.")
    ratio: float = Field(
        description="Tokens that the model's provider counts for each token that the estimator counts."
    )
    margin: float = Field(
        description="Safety margin: the share by which the model's count may exceed the estimator's times `ratio`."
    )
    samples: int = Field(description="Number of calls with reported usage that it is based on.")
    window_tokens: int | None = Field(
        description="Window that the provider named in an error; null if it named none smaller than assumed."
    )
    updated_at: UpdatedAt


class CalibrationsForgotten(BaseModel):
    """Result of forgetting calibrations."""

    forgotten: int = Field(description="Number of calibrations that were deleted.")


class CalibrationPage(BaseModel):
    """A page of calibrations."""

    items: list[CalibrationOut] = Field(description="Calibrations by model, then by estimator.")
    next_cursor: NextCursor


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
    sid: Sid, call_id: Id, body: OutcomeIn, who: Who, feedback: Service, idempotent: Idempotent
) -> Mapping[str, Any] | OutcomeOut:
    """Report the outcome of a call: its token usage, its duration, or its error. The response says what to do next.

    Repeating a report returns the same response. A different report is accepted only after an error that was not an
    overflow, since a client may have sent such a request again.
    """
    report = Report(
        None if body.usage is None else body.usage.model_dump(),
        body.latency_ms,
        None if body.error is None else body.error.model_dump(),
    )

    async def reported() -> OutcomeOut:
        return _out(session_of(sid), await feedback.report(who.tenant_id, sid, call_id, report))

    out: Mapping[str, Any] | OutcomeOut = await idempotent(body).run_repeatable(OutcomeOut, reported)
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
) -> CalibrationsForgotten:
    """Forget how models count tokens and how large their windows are, for all models or for those selected.

    Views keep the corrections learned from their own calls.
    """
    return CalibrationsForgotten(forgotten=await feedback.forget(who.tenant_id, model, estimator))


def _out(session: str, verdict: Verdict) -> OutcomeOut:
    call, outcome = verdict.call, verdict.outcome
    if not outcome.overflow:
        return OutcomeOut(overflow=False, action="none")
    pattern = (outcome.error or {}).get("overflow")
    matched = None if pattern is None else MatchedOut.model_validate(pattern)
    if call.retry_of is not None:
        return OutcomeOut(overflow=True, action="stop", matched=matched)
    retry = ContextIn(
        retry_of=call.call_id,
        view=call.view,
        format=call.format,
        model=call.model,
        max_tokens=call.manifest.window,
        wait_ms=verdict.wait_ms,
    )
    body = retry.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    then = NextOut(method="POST", path=f"/v1/sessions/{session}/context", body=body)
    return OutcomeOut(overflow=True, action="retry", matched=matched, next=then)


def _after(cursor: str | None) -> tuple[str, str] | None:
    names = paging.decode_names(cursor, 2)
    return None if names is None else (names[0], names[1])
