"""Forks of sessions."""

from typing import Any

from pydantic import ConfigDict, Field

from app.api.schemas.common import Closed, SessionId


class ForkIn(Closed):
    """A new session that begins with the log of another, up to one of its seqs."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"id": "demo-try-2", "at": 120}]})

    id: SessionId = Field(description="Id of the new session, chosen by the client.")
    at: int | None = Field(
        None,
        ge=0,
        lt=2**63,
        description="Seq of the last event that both share; an earlier one rewinds, 0 shares nothing. Default: the "
        "head.",
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Client's own data about the new session; the parent's is not copied."
    )
