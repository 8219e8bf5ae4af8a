"""Forks of sessions, and lines that go back."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Closed, Seq, SessionId
from app.api.schemas.sessions import SessionOut


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


class LeftOutOut(BaseModel):
    """A tool call or result that a fork was made in front of."""

    seq: Seq
    type: Literal["tool.call", "tool.result"] = Field(description="Type of the event.")
    call_id: str = Field(description="Id of the tool call.")
    tool: str | None = Field(description="Name of the tool; null if it is not known.")


class ForkOut(SessionOut):
    """A fork, and what it left out of the round in which it was made."""

    left_out: list[LeftOutOut] = Field(
        description="Events of the parent behind `parent.at` that belong to what the fork shares: results of tool "
        "calls that have none in the fork, and further calls of the same answer. Append the results to the fork, or "
        "fork behind them; until then its contexts show the calls as pending. Empty for a fork between rounds."
    )


class RewindOut(SessionOut):
    """A session that went back, and what its line left out of the round in which it ends."""

    left_out: list[LeftOutOut] = Field(
        description="Events of the line before, behind the seq where this one ends, that belong to what both share: "
        "results of tool calls that have none here, and further calls of the same answer. Append the results, or go "
        "back to a seq between rounds; until then contexts show the calls as pending. Empty for an end between rounds."
    )
