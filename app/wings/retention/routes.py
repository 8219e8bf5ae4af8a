"""Rules for how long a tenant's data is kept, and erasures of the sessions that match a filter."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Depends, Path, Response
from pydantic import BaseModel, BeforeValidator, Field

from app.http import paging
from app.http.auth import PrefixAccess
from app.http.fields import CreatedAt, Cursor, Id, Limit, Moment, NextCursor, SessionName, StrictRequest, answer_of
from app.http.openapi import examples
from app.http.operation import Key, Resource, Who, service
from app.wings.retention.erasures import UNEXPECTED_MAX, ErasureRequest, Erasures
from app.wings.retention.rules import DAYS_MAX, DELIVERY_DAYS_MAX, RetentionDays
from app.wings.retention.service import DataRetention
from app.wings.retention.store import ErasureRow, RetentionRow

SESSION_DAYS = "Days after its creation at which a session is erased, used or not; null or 0: never."
IDLE_DAYS = (
    "Days without any use after which a session is erased: without an append, context, outcome, stream, or change of "
    "its settings or layers; null or 0: never."
)
CALL_DAYS = (
    "Days for which records of calls are kept, unless the policy or the server keeps them for a shorter time; null or "
    "0: as long as those say."
)
COMPACTION_DAYS = "Days for which finished compactions are listed; null or 0: forever."
CHANGE_DAYS = "Days for which changes other than events (epochs, compactions) can be streamed; null or 0: forever."
DELIVERY_DAYS = "Days for which finished deliveries are kept; null or 0: 30."


class RetentionIn(StrictRequest):
    """Rules for how long the tenant's data is kept. They replace all previous rules; an omitted one is null."""

    model_config = examples(lambda: RetentionIn(idle_days=180, call_days=30))

    session_days: int | None = Field(None, ge=0, le=DAYS_MAX, description=SESSION_DAYS)
    idle_days: int | None = Field(None, ge=0, le=DAYS_MAX, description=IDLE_DAYS)
    call_days: int | None = Field(None, ge=0, le=DAYS_MAX, description=CALL_DAYS)
    compaction_days: int | None = Field(None, ge=0, le=DAYS_MAX, description=COMPACTION_DAYS)
    change_days: int | None = Field(None, ge=0, le=DAYS_MAX, description=CHANGE_DAYS)
    delivery_days: int | None = Field(None, ge=0, le=DELIVERY_DAYS_MAX, description=DELIVERY_DAYS)


class RetentionOut(BaseModel):
    """Rules for how long the tenant's data is kept."""

    session_days: int | None = Field(description=SESSION_DAYS)
    idle_days: int | None = Field(description=IDLE_DAYS)
    call_days: int | None = Field(description=CALL_DAYS)
    compaction_days: int | None = Field(description=COMPACTION_DAYS)
    change_days: int | None = Field(description=CHANGE_DAYS)
    delivery_days: int | None = Field(description=DELIVERY_DAYS)
    updated_at: datetime | None = Field(description="Time at which the rules were last set; null if they never were.")


class RuleDueOut(BaseModel):
    """Data that one rule would erase now."""

    rule: Literal["age", "idle", "calls", "compactions", "changes", "deliveries"] = Field(
        description="Rule: `age` (`session_days`) and `idle` (`idle_days`) erase sessions, the others erase records."
    )
    count: int = Field(description="Number of sessions (after the cursor) or records that would be erased.")
    more: bool = Field(description="Whether counting stopped at its limit, so that there may be more.")
    oldest: datetime | None = Field(description="Time of the oldest of them; null if there is none.")
    newest: datetime | None = Field(description="Time of the newest of them; null if there is none.")


class DueOut(BaseModel):
    """A session that would be erased now."""

    id: SessionName
    rule: Literal["age", "idle"] = Field(description="Rule that applies; `age` if both do.")
    created_at: CreatedAt
    used_at: datetime = Field(description="Time of its last use.")


class RetentionPreview(BaseModel):
    """Data that the rules would erase if a worker applied them now. Nothing was changed."""

    rules: list[RuleDueOut] = Field(
        description="Data that would be erased, by rule; rules that are not set are absent."
    )
    items: list[DueOut] = Field(description="Sessions that would be erased, oldest first.")
    next_cursor: NextCursor


FORKS = (
    "Treatment of a session with forks that do not meet the conditions but share its events: `keep` keeps the session; "
    "`erase` erases it together with those forks."
)


class ErasureIn(StrictRequest):
    """Conditions for the sessions to erase; all of them must hold."""

    model_config = examples(lambda: ErasureIn(metadata={"user": "ann"}))

    metadata: dict[str, Any] = Field(
        min_length=1,
        description="Fields that a session's `metadata` must have, with exactly these values; nested objects are "
        "compared field by field, lists as a whole. At least one value must not be null; empty objects and lists are "
        "not allowed.",
    )
    model: str | None = Field(None, min_length=1, max_length=256, description="Name of the sessions' model.")
    since: Moment | None = Field(None, description="Earliest time of the sessions' creation, inclusive.")
    until: Moment | None = Field(None, description="Latest time of the sessions' creation, exclusive.")
    forks: Literal["keep", "erase"] = Field("keep", description=FORKS)


class NewErasureIn(ErasureIn):
    """Conditions for the sessions to erase, and their expected number."""

    expected: int | None = Field(
        None,
        ge=0,
        description="Number of sessions that would be erased: `sessions` of a preview's first page, if not `more`. "
        f"Required for more than {UNEXPECTED_MAX}; the error `erasure-count-conflict` has the exact number.",
    )


class MatchingOut(BaseModel):
    """A session that meets the conditions."""

    id: SessionName
    created_at: CreatedAt
    kept: bool = Field(description="Whether it would be kept because of forks that share its events.")


class ErasurePreview(BaseModel):
    """Preview of an erasure. Nothing was changed."""

    sessions: int = Field(description="Number of sessions (after the cursor) that would be erased, including forks.")
    kept: int = Field(description="Number of sessions (after the cursor) that meet the conditions but would be kept.")
    more: bool = Field(description="Whether counting stopped at its limit, so that there may be more.")
    items: list[MatchingOut] = Field(description="Sessions that meet the conditions, newest first.")
    next_cursor: NextCursor


class ErasureOut(BaseModel):
    """An erasure: its progress and, once it is done, its receipt. It names no session."""

    id: Id = Field(description="Id of the erasure, a UUID.")
    state: Literal["running", "done"] = Field(
        description="State: `running` until a worker has finished it, then `done`."
    )
    tenant_id: Id = Field(
        description="Id of the tenant, a UUID, from which the UUIDs (version 5) of the erased sessions are derived."
    )
    key_id: Id | None = Field(description="Id of the key that requested it; null if it was requested without a key.")
    filter_sha256: Annotated[str, BeforeValidator(bytes.hex)] = Field(
        description="SHA-256, in hex, of the given conditions as JSON: UTF-8, without whitespace, all keys sorted. The "
        "conditions themselves are deleted when the erasure is done."
    )
    forks: Annotated[Literal["keep", "erase"], BeforeValidator(lambda erased: "erase" if erased else "keep")] = Field(
        description=FORKS
    )
    sessions: int = Field(description="Number of sessions erased so far, including forks.")
    kept: int | None = Field(
        description="Number of sessions that met the conditions but were kept; null until it is done."
    )
    counts: dict[str, int] | None = Field(description="Number of erased rows by table; null until it is done.")
    created_at: CreatedAt
    finished_at: datetime | None = Field(description="Time at which it finished; null until then.")


ErasurePage = paging.page_of(ErasureOut, "A page of erasures.", "Erasures, newest first.")


class ErasedSessionOut(BaseModel):
    """An erased session."""

    session_id: Id = Field(description="UUID (version 5) derived from the tenant's id and the session's name.")
    erased_at: datetime = Field(description="Time at which it was erased.")


ErasedSessionPage = paging.page_of(
    ErasedSessionOut, "A page of the sessions erased by an erasure.", "Erased sessions by `session_id`."
)


router = Resource("retention", scope="admin", access=PrefixAccess.TENANT)

RulesService = Annotated[DataRetention, Depends(service(DataRetention))]
ErasuresService = Annotated[Erasures, Depends(service(Erasures))]
ErasureId = Annotated[UUID, Path(description="Id of the erasure.")]


@router.operation("PUT", "/v1/retention")
async def put_retention(body: RetentionIn, who: Who, retention: RulesService) -> RetentionOut:
    """Set how many days the tenant's data is kept. A worker erases older data once an hour."""
    return _out(await retention.put(who.tenant_id, RetentionDays(**body.model_dump())))


@router.operation("GET", "/v1/retention")
async def get_retention(who: Who, retention: RulesService) -> RetentionOut:
    """Get how many days the tenant's data is kept."""
    return _out(await retention.get(who.tenant_id))


@router.operation("GET", "/v1/retention:preview", returns=RetentionPreview)
async def preview_retention(
    who: Who, retention: RulesService, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """Preview the rules: list the data that they would erase now. Nothing is erased."""
    found = await retention.preview(who.tenant_id, limit, paging.decode_date_and_id(cursor))
    return {"rules": found.rules, **paging.page_to(found.items, found.next)}


@router.operation(
    "POST",
    "/v1/erasures",
    returns=ErasureOut,
    status=202,
    also=(200,),
    problems=("idempotency-conflict", "erasure-count-conflict"),
)
async def create_erasure(
    body: NewErasureIn, response: Response, who: Who, erasures: ErasuresService, key: Key = None
) -> ErasureRow:
    """Erase the sessions that meet the conditions, with everything derived from them. This cannot be undone.

    A worker erases them one by one; get the erasure for its progress and, at the end, its receipt. Sessions created
    after the request are not erased, except, with `"forks": "erase"`, forks of erased sessions. Repeating the request
    with its `Idempotency-Key` returns the same erasure in its current state (200).
    """
    row, new = await erasures.create(who.tenant_id, replace(_request_of(body), expected=body.expected), who.key_id, key)
    response.status_code = 202 if new else 200
    return row


@router.operation("POST", "/v1/erasures:preview")
async def preview_erasure(
    body: ErasureIn, who: Who, erasures: ErasuresService, limit: Limit = 100, cursor: Cursor = None
) -> ErasurePreview:
    """Preview an erasure: list the sessions that it would erase now. Nothing is erased."""
    found = await erasures.preview(who.tenant_id, _request_of(body), limit, paging.decode_date_and_id(cursor))
    return answer_of(ErasurePreview, found, **paging.page_to(found.items, found.next))


@router.operation("GET", "/v1/erasures/{erasure_id}", returns=ErasureOut, problems=("not-found",))
async def get_erasure(erasure_id: ErasureId, who: Who, erasures: ErasuresService) -> ErasureRow:
    """Get an erasure: its progress or, once it is done, its receipt."""
    return await erasures.get(who.tenant_id, erasure_id)


@router.operation("GET", "/v1/erasures", returns=ErasurePage)
async def list_erasures(
    who: Who, erasures: ErasuresService, limit: Limit = 50, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the tenant's erasures, newest first."""
    found = await erasures.page(who.tenant_id, paging.decode_id(cursor), limit + 1)
    return paging.page(found, limit, lambda row: row.id)


@router.operation("GET", "/v1/erasures/{erasure_id}/sessions", returns=ErasedSessionPage, problems=("not-found",))
async def list_erased_sessions(
    erasure_id: ErasureId, who: Who, erasures: ErasuresService, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the sessions that an erasure has erased so far, by UUIDs derived from their names."""
    found = await erasures.sessions(who.tenant_id, erasure_id, paging.decode_id(cursor), limit + 1)
    return paging.page(found, limit, lambda one: one.session_id)


def _out(row: RetentionRow) -> RetentionOut:
    return answer_of(RetentionOut, row, row.rules)


def _request_of(body: ErasureIn) -> ErasureRequest:
    return ErasureRequest(body.metadata, body.model, body.since, body.until, body.forks == "erase")
