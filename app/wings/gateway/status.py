"""The state of the gateway: the addresses that it forwards to, and the newest requests through it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from app.http.auth import PrefixAccess
from app.http.fields import answer_of
from app.http.operation import Resource, Who
from app.services.forwarded_calls import CALLS_MAX, ForwardedCall, ForwardedCalls
from app.services.tenants import Caller
from app.wings.gateway.schemas import GatewayOut

Limit = Annotated[int, Query(ge=0, le=CALLS_MAX, description="Maximum number of requests in the response.")]


@dataclass(frozen=True, slots=True)
class ForwardingAddresses:
    """The addresses that the gateway forwards to, by provider."""

    by_provider: Mapping[str, str]


router = Resource("gateway")


def _may_see(who: Caller, call: ForwardedCall) -> bool:
    """Return whether a key may see a request; one that is limited to a prefix sees those of its sessions."""
    return not who.session_prefix if call.session is None else who.may_access(call.session)


def _services(request: Request) -> Mapping[type, Any]:
    found: Mapping[type, Any] = request.state.services.by_class
    return found


@router.operation("GET", "/v1/gateway", scope="read", access=PrefixAccess.WITHIN, returns=GatewayOut)
async def get_gateway(
    who: Who, services: Annotated[Mapping[type, Any], Depends(_services)], limit: Limit = 10
) -> GatewayOut:
    """Get the addresses that the gateway forwards to, and the newest requests through it."""
    remembered: ForwardedCalls = services[ForwardedCalls]
    calls = [call for call in remembered.newest(who.tenant_id) if _may_see(who, call)][:limit]
    addresses: ForwardingAddresses = services[ForwardingAddresses]
    return answer_of(GatewayOut, upstreams=addresses.by_provider, since=remembered.since, calls=calls)
