"""Forks and rewinds of sessions."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Seq, SessionId, StrictRequest
from app.api.schemas.sessions import SessionOut


class ForkIn(StrictRequest):
    """Request for a new session that begins with the log of another, up to a seq."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"id": "demo-try-2", "at": 120}]})

    id: SessionId = Field(description="Id of the new session, chosen by the client.")
    at: int | None = Field(
        None,
        ge=0,
        lt=2**63,
        description="Seq of the last event that both share; 0 shares nothing. Default: the head.",
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Client's own data about the new session; the parent's is not copied."
    )


class LeftOutOut(BaseModel):
    """A tool call or result that was cut off by a fork or rewind."""

    seq: Seq
    type: Literal["tool.call", "tool.result"] = Field(description="Type of the event.")
    call_id: str = Field(description="Id of the tool call.")
    tool: str | None = Field(description="Name of the tool; null if it is not known.")


class ForkOut(SessionOut):
    """A fork, and the events of its last round that were cut off."""

    left_out: list[LeftOutOut] = Field(
        description="Events of the parent after `parent.at` that belong to the last round of the fork: results of its "
        "tool calls, and further calls of the same response. Append the results to the fork, or fork after them; until "
        "then its contexts show the calls as pending. Empty for a fork between rounds."
    )


class RewindOut(SessionOut):
    """A rewound session, and the events of its last round that were cut off."""

    left_out: list[LeftOutOut] = Field(
        description="Events of the previous line after `to` that belong to the last round of the new line: results of "
        "its tool calls, and further calls of the same response. Append the results, or rewind to a seq between "
        "rounds; until then contexts show the calls as pending. Empty if the line ends between rounds."
    )
