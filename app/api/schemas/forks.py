"""Forks of sessions."""

from typing import Any

from pydantic import ConfigDict, Field

from app.api.schemas.common import Closed, SessionId


class ForkIn(Closed):
    """A new session that begins as this one stands, or stood at an earlier seq."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"id": "demo-try-2", "at": 120}]})

    id: SessionId = Field(description="Your own id of the new session.")
    at: int | None = Field(
        None, ge=0, lt=2**63, description="The last seq that it shares; the head if left out, an older one to rewind."
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="Of the new session; its parent's is not taken.")
