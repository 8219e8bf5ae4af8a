"""Retention: rules for how long a tenant's data is kept, and their preview."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.core.log.turns import DAYS_MAX, DELIVERY_DAYS_MAX
from app.http.fields import CreatedAt, NextCursor, SessionName, StrictRequest

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

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"idle_days": 180, "call_days": 30}]})

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
