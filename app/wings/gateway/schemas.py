"""Schemas of the gateway's state."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from app.services.forwarded_calls import CALLS_MAX

Provider = Annotated[str, Field(description="Provider, as in the paths under `/gateway`.", examples=["anthropic"])]


class GatewayCall(BaseModel):
    """A request that was forwarded."""

    at: datetime = Field(description="Time of the request.")
    provider: Provider
    path: str = Field(description="The provider's path.")
    mode: Literal["context", "observed", "answered", "bypass", "passthrough"] = Field(
        description="Form in which it was sent: with a `context` in place of the client's conversation, or unchanged: "
        "with a recorded context that was not sent (`observed`), with a session (`bypass`) or without one "
        "(`passthrough`). `answered`: it was not sent, but answered by the gateway with a compaction item."
    )
    reason: str | None = Field(description="Reason why it was sent unchanged; null if there is none.")
    session: str | None = Field(description="Id of the session; null without one.")
    line: str | None = Field(description="Id of the session's line; null unless a context was recorded.")
    call_id: UUID | None = Field(description="Id of the recorded call; null without one.")
    tokens_sent: int | None = Field(description="Estimated size of the context; null unless one was sent.")
    tokens_wanted: int | None = Field(
        description="Estimated size of the conversation; null unless a context was recorded."
    )
    potential_tokens: int | None = Field(
        description="Estimated size of the context that was recorded and not sent; null unless `mode` is `observed`."
    )


class GatewayOut(BaseModel):
    """State of the gateway."""

    upstreams: dict[str, str] = Field(
        description="Address to which requests for each provider are forwarded; empty if the gateway is off."
    )
    since: datetime = Field(description="Time since when this process has remembered requests.")
    calls: list[GatewayCall] = Field(
        description=f"Requests that this process has forwarded for the tenant, newest first, {CALLS_MAX} at most."
    )
