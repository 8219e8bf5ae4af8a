"""Pings, which keep the provider's cache of clients that are idle."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from app.runtime.wing import Wing

if TYPE_CHECKING:
    from app.runtime.wiring import Services


class PingSettings(BaseModel):
    """Settings of pings."""

    gateway_pings: Literal["off", "hour", "all"] = Field(
        "off",
        description="Whether the gateway keeps Anthropic's cache of idle sessions by pings, for which it holds the"
        " client's key in memory: `hour`, for caches that live for an hour, or `all`, also for those of five minutes.",
    )
    gateway_ping_idle_seconds: float = Field(
        14_400.0, gt=0, description="Seconds after a session's last call in which the gateway pings."
    )
    gateway_ping_spend_tokens: int = Field(
        200_000,
        ge=0,
        description="Price of all warmings of a session, as a number of uncached input tokens, up to which the gateway"
        " pings.",
    )


def _services(settings: PingSettings, kernel: "Services") -> Iterable[object]:
    if settings.gateway_pings != "off":
        from app.wings.pings.service import PingRules, Pings

        short, most = settings.gateway_pings == "all", settings.gateway_ping_spend_tokens
        yield Pings(kernel, PingRules(short, settings.gateway_ping_idle_seconds, most))


WING = Wing(settings=PingSettings, services=_services)
