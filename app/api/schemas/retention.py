"""Retention: how long a tenant's data is kept, and what would go now."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Closed, CreatedAt, NextCursor, SessionName
from app.core.log.lifetime import DAYS_MAX, DELIVERY_DAYS_MAX

SESSION_DAYS = "Days after its creation at which a session is erased, used or not; null or 0: never."
IDLE_DAYS = (
    "Days without any use at which a session is erased: without an append, context, outcome, stream, or change of its "
    "settings or layers; null or 0: never."
)
CALL_DAYS = (
    "Days for which records of calls are kept, where neither the policy nor the server keeps them for a shorter time; "
    "null or 0: as long as those say."
)
COMPACTION_DAYS = "Days for which compactions that have ended are listed; null or 0: for ever."
CHANGE_DAYS = "Days for which changes beside the log (epochs, compactions) can be read in streams; null or 0: for ever."
DELIVERY_DAYS = "Days for which deliveries that have ended are kept; null or 0: 30."


class RetentionIn(Closed):
    """For how many days the tenant's data is kept. It replaces the rules before: what is omitted is kept for ever."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"idle_days": 180, "call_days": 30}]})

    session_days: int | None = Field(None, ge=0, le=DAYS_MAX, description=SESSION_DAYS)
    idle_days: int | None = Field(None, ge=0, le=DAYS_MAX, description=IDLE_DAYS)
    call_days: int | None = Field(None, ge=0, le=DAYS_MAX, description=CALL_DAYS)
    compaction_days: int | None = Field(None, ge=0, le=DAYS_MAX, description=COMPACTION_DAYS)
    change_days: int | None = Field(None, ge=0, le=DAYS_MAX, description=CHANGE_DAYS)
    delivery_days: int | None = Field(None, ge=0, le=DELIVERY_DAYS_MAX, description=DELIVERY_DAYS)


class RetentionOut(BaseModel):
    """For how many days the tenant's data is kept."""

    session_days: int | None = Field(description=SESSION_DAYS)
    idle_days: int | None = Field(description=IDLE_DAYS)
    call_days: int | None = Field(description=CALL_DAYS)
    compaction_days: int | None = Field(description=COMPACTION_DAYS)
    change_days: int | None = Field(description=CHANGE_DAYS)
    delivery_days: int | None = Field(description=DELIVERY_DAYS)
    updated_at: datetime | None = Field(description="Time at which the rules were last put; null if they never were.")


class RuleDueOut(BaseModel):
    """What would be erased now by one rule."""

    rule: Literal["age", "idle", "calls", "compactions", "changes", "deliveries"] = Field(
        description="Rule: `age` (`session_days`) and `idle` (`idle_days`) erase sessions, the others what is recorded "
        "beside them."
    )
    count: int = Field(description="Number of sessions (behind the cursor) or records that would be erased.")
    more: bool = Field(description="Whether counting ended at its limit, so that there may be more.")
    oldest: datetime | None = Field(description="Time of the oldest of them; null if there is none.")
    newest: datetime | None = Field(description="Time of the newest of them; null if there is none.")


class DueOut(BaseModel):
    """A session that would be erased now."""

    id: SessionName
    rule: Literal["age", "idle"] = Field(description="Rule by which its time is over: `age` if both.")
    created_at: CreatedAt
    used_at: datetime = Field(description="Time of its last use.")


class RetentionPreview(BaseModel):
    """What the rules would erase if a worker applied them now. Nothing was changed."""

    rules: list[RuleDueOut] = Field(description="What would go, by rule; rules that are not set are missing.")
    items: list[DueOut] = Field(description="Sessions that would go, oldest first.")
    next_cursor: NextCursor
