"""Erasures of all sessions that match a filter."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.http.fields import CreatedAt, Id, Moment, NextCursor, SessionName, StrictRequest
from app.services.erasures import UNEXPECTED_MAX

FORKS = (
    "Treatment of a session with forks that do not meet the conditions but share its events: `keep` keeps the session; "
    "`erase` erases it together with those forks."
)


class ErasureIn(StrictRequest):
    """Conditions for the sessions to erase; all of them must hold."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"metadata": {"user": "ann"}}]})

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
        description="Number of sessions that would be erased: `sessions` of the preview, unless that has `more`. "
        f"Required for more than {UNEXPECTED_MAX}; the error `erasure-count-conflict` has the exact number.",
    )


class MatchingOut(BaseModel):
    """A session that meets the conditions."""

    id: SessionName
    created_at: CreatedAt
    kept: bool = Field(description="Whether it would be kept because of forks that share its events.")


class ErasurePreview(BaseModel):
    """Preview of an erasure. Nothing was changed."""

    sessions: int = Field(description="Number of sessions that would be erased, including forks.")
    kept: int = Field(description="Number of sessions that meet the conditions but would be kept.")
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
    filter_sha256: str = Field(
        description="SHA-256, in hex, of the given conditions as JSON: UTF-8, without whitespace, all keys sorted. The "
        "conditions themselves are not stored."
    )
    forks: Literal["keep", "erase"] = Field(description=FORKS)
    sessions: int = Field(description="Number of sessions erased so far, including forks.")
    kept: int | None = Field(
        description="Number of sessions that met the conditions but were kept; null until it is done."
    )
    counts: dict[str, int] | None = Field(description="Number of erased rows by table; null until it is done.")
    created_at: CreatedAt
    finished_at: datetime | None = Field(description="Time at which it finished; null until then.")


class ErasurePage(BaseModel):
    """A page of erasures."""

    items: list[ErasureOut] = Field(description="Erasures, newest first.")
    next_cursor: NextCursor


class ErasedSessionOut(BaseModel):
    """An erased session."""

    session_id: Id = Field(description="UUID (version 5) derived from the tenant's id and the session's name.")
    erased_at: datetime = Field(description="Time at which it was erased.")


class ErasedSessionPage(BaseModel):
    """A page of the sessions erased by an erasure."""

    items: list[ErasedSessionOut] = Field(description="Erased sessions by `session_id`.")
    next_cursor: NextCursor
