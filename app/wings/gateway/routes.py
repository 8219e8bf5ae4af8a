"""The state of the gateway: the addresses that it forwards to, and the newest requests through it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from fastapi import Depends, Query
from pydantic import BaseModel, Field

from app.http.auth import PrefixAccess
from app.http.fields import answer_of
from app.http.operation import Resource, Who, service
from app.runtime.wing import CALLS_MAX, ForwardedCall, ForwardedCalls
from app.tenants import Caller

Provider = Annotated[str, Field(description="Provider, as in the paths under `/gateway`.", examples=["anthropic"])]
Mode: TypeAlias = Literal["context", "observed", "answered", "bypass", "passthrough"]


class GatewayCall(BaseModel):
    """A request that was forwarded."""

    at: datetime = Field(description="Time of the request.")
    provider: Provider
    path: str = Field(description="The provider's path.")
    mode: Mode = Field(
        description="Form in which it was sent: with a `context` in place of the client's conversation, or without "
        "one: because the session is only observed (`observed`), because no context could be made or the database was "
        "unreachable (`bypass`), or because the request has no conversation or session, or is for the provider's "
        "endpoint for compactions (`passthrough`). `answered`: it was not sent, but answered by the gateway with a "
        "compaction item."
    )
    reason: str | None = Field(description="Reason why it was sent without a context; null if there is none.")
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


Limit = Annotated[int, Query(ge=0, le=CALLS_MAX, description="Maximum number of requests in the response.")]


@dataclass(frozen=True, slots=True)
class ForwardingAddresses:
    """The addresses that the gateway forwards to, by provider."""

    by_provider: Mapping[str, str]


router = Resource("gateway")


def _may_see(who: Caller, call: ForwardedCall) -> bool:
    """Return whether a key may see a request; one that is limited to a prefix sees those of its sessions."""
    return not who.session_prefix if call.session is None else who.may_access(call.session)


@router.operation("GET", "/v1/gateway", scope="read", access=PrefixAccess.WITHIN)
async def get_gateway(
    who: Who,
    addresses: Annotated[ForwardingAddresses, Depends(service(ForwardingAddresses))],
    remembered: Annotated[ForwardedCalls, Depends(service(ForwardedCalls))],
    limit: Limit = 10,
) -> GatewayOut:
    """Get the addresses that the gateway forwards to, and the newest requests through it."""
    calls = [call for call in remembered.newest(who.tenant_id) if _may_see(who, call)][:limit]
    return answer_of(GatewayOut, upstreams=addresses.by_provider, since=remembered.since, calls=calls)
