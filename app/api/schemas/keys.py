"""API keys."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Closed, Moment
from app.core.log.events import SESSION_ID_PATTERN

Scope = Literal["ingest", "read", "audit", "admin"]


class KeyIn(Closed):
    """A key for this tenant."""

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

    name: str = Field(min_length=1, max_length=128, description="What it is for; need not be unique.")
    scopes: list[Scope] = Field(min_length=1, max_length=16, description="`admin` is all of them.")
    expires_at: Moment | None = Field(None, description="A time to come; it works until then. None: for ever.")
    session_prefix: str | None = Field(
        None,
        pattern=SESSION_ID_PATTERN,
        description="It is for sessions whose names begin so, as though there were no others. None: for all.",
    )


class KeyOut(BaseModel):
    """A key. Its secret is not shown. `last_used_at` is right to the minute, about."""

    id: str
    name: str
    scopes: list[Scope]
    session_prefix: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class KeyMade(KeyOut):
    """As it was stored; the `secret` is shown this once."""

    secret: str


class KeyPage(BaseModel):
    """The newest first, revoked and expired ones too."""

    items: list[KeyOut]
    next_cursor: str | None
