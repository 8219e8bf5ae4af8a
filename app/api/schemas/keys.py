"""API keys."""

from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import CreatedAt, Id, Moment, NextCursor, StrictRequest
from app.core.log.events import SESSION_ID_PATTERN

Scope = Literal["ingest", "read", "audit", "admin"]


SCOPES: Final = (
    "Scopes of the key: `ingest` (append, change sessions, report outcomes), `read` (contexts, logs, records), `audit` "
    "(search across sessions), `admin` (all of these, erasure, policies, keys and webhooks)."
)


class KeyIn(StrictRequest):
    """Request for an API key for the caller's tenant."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "laptop of user 42",
                    "scopes": ["ingest", "read"],
                    "expires_at": "2027-01-01T00:00:00Z",
                    "session_prefix": "user-42:",
                }
            ]
        },
    )

    name: str = Field(
        min_length=1, max_length=128, description="Name of the key, which says its purpose; it need not be unique."
    )
    scopes: list[Scope] = Field(min_length=1, max_length=16, description=SCOPES)
    expires_at: Moment | None = Field(
        None, description="Time at which the key stops working, in the future. Default: never."
    )
    session_prefix: str | None = Field(
        None,
        pattern=SESSION_ID_PATTERN,
        description="Prefix of the ids of the sessions that the key can access; to its holder no others exist. "
        "Default: all sessions.",
    )


class KeyOut(BaseModel):
    """An API key, without its secret."""

    id: Id = Field(description="Id of the key, a UUID.")
    name: str = Field(description="Name of the key, which says its purpose.")
    scopes: list[Scope] = Field(description=SCOPES)
    session_prefix: str | None = Field(
        description="Prefix of the ids of the sessions that the key can access; null if it can access all."
    )
    created_at: CreatedAt
    expires_at: datetime | None = Field(description="Time at which the key stops working; null if never.")
    revoked_at: datetime | None = Field(description="Time at which the key was revoked; null if it was not.")
    last_used_at: datetime | None = Field(
        description="Time of the key's last use, exact to about a minute; null if it was never used."
    )


class KeyMade(KeyOut):
    """A newly created API key, with its secret."""

    secret: str = Field(
        description="Secret to send as `Authorization: Bearer <secret>`. Only this response contains it."
    )


class KeyPage(BaseModel):
    """A page of API keys."""

    items: list[KeyOut] = Field(description="API keys, newest first, revoked and expired ones included.")
    next_cursor: NextCursor
