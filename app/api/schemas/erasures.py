"""Erasures of all sessions that a filter finds."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Closed, CreatedAt, Id, Moment, NextCursor, SessionName
from app.services.erasures import UNEXPECTED_MAX

FORKS = (
    "What to do with a session that has forks for which the conditions do not hold, and which share its events: `keep` "
    "keeps it; `erase` erases it with them."
)


class ErasureIn(Closed):
    """The sessions to erase: those for which all conditions hold."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"metadata": {"user": "ann"}}]})

    metadata: dict[str, Any] = Field(
        min_length=1,
        description="Fields that a session's `metadata` has with exactly these values; fields of an object in it are "
        "compared one by one, lists as a whole. At least one value that is not null; no empty object or list.",
    )
    model: str | None = Field(None, min_length=1, max_length=256, description="Name of the sessions' model.")
    since: Moment | None = Field(None, description="Earliest time of the sessions' creation, inclusive.")
    until: Moment | None = Field(None, description="Latest time of the sessions' creation, exclusive.")
    forks: Literal["keep", "erase"] = Field("keep", description=FORKS)


class NewErasureIn(ErasureIn):
    """The sessions to erase, and how many they are."""

    expected: int | None = Field(
        None,
        ge=0,
        description="Number of sessions that would be erased, as `sessions` of the preview unless that has `more`. "
        f"Required for more than {UNEXPECTED_MAX}; the error `erasure-count-conflict` says the exact number.",
    )


class MatchingOut(BaseModel):
    """A session that the conditions find."""

    id: SessionName
    created_at: CreatedAt
    kept: bool = Field(description="Whether it would be kept, for forks that share its events.")


class ErasurePreview(BaseModel):
    """What an erasure would erase now. Nothing was changed."""

    sessions: int = Field(description="Number of sessions that would be erased, with forks.")
    kept: int = Field(description="Number of sessions that the conditions find and that would be kept.")
    more: bool = Field(description="Whether counting ended at its limit, so that there may be more.")
    items: list[MatchingOut] = Field(description="Sessions that the conditions find, newest first.")
    next_cursor: NextCursor


class ErasureOut(BaseModel):
    """An erasure: how far it is, and once it is done its receipt, which names no session."""

    id: Id = Field(description="Id of the erasure, a UUID.")
    state: Literal["running", "done"] = Field(description="State: `running` until a worker has done it, then `done`.")
    tenant_id: Id = Field(
        description="Id of the tenant, a UUID: the ids of erased sessions are UUIDs (version 5) of it and their names."
    )
    key_id: Id | None = Field(description="Id of the key that asked for it; null if it was asked for without one.")
    filter_sha256: str = Field(
        description="SHA-256, in hex, of the conditions that were given as JSON: UTF-8, without whitespace, all keys "
        "sorted. The conditions themselves are not kept."
    )
    forks: Literal["keep", "erase"] = Field(description=FORKS)
    sessions: int = Field(description="Number of sessions that were erased so far, with forks.")
    kept: int | None = Field(description="Number of sessions that were found and kept; null until it is done.")
    counts: dict[str, int] | None = Field(
        description="Number of rows that were erased, by table; null until it is done."
    )
    created_at: CreatedAt
    finished_at: datetime | None = Field(description="Time at which it was done; null until then.")


class ErasurePage(BaseModel):
    """A page of erasures."""

    items: list[ErasureOut] = Field(description="Erasures, newest first.")
    next_cursor: NextCursor


class ErasedSessionOut(BaseModel):
    """A session that was erased."""

    session_id: Id = Field(description="UUID (version 5) of the tenant's id and the session's name.")
    erased_at: datetime = Field(description="Time at which it was erased.")


class ErasedSessionPage(BaseModel):
    """A page of the sessions that an erasure has erased."""

    items: list[ErasedSessionOut] = Field(description="Sessions by their id.")
    next_cursor: NextCursor
