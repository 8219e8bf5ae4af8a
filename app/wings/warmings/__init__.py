"""Warmings, which keep the provider's cache of a call: by clients, and by pings of the gateway for idle clients."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from app.runtime.wing import Wing

if TYPE_CHECKING:
    from app.http.operation import Resource
    from app.runtime.settings import KernelSettings
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


if TYPE_CHECKING:

    class Settings(PingSettings, KernelSettings):
        """All settings that this wing uses."""


def _services(settings: "Settings", kernel: "Services") -> Iterable[object]:
    from app.core.tokens.models import parse_table
    from app.wings.warmings.routes import Warmings

    caches = parse_table(settings.cache_table)
    yield (warmings := Warmings(kernel.database, kernel.policies, kernel.recordings, caches))
    if settings.gateway_pings != "off":
        from app.wings.warmings.pings import PingRules, Pings

        short, most = settings.gateway_pings == "all", settings.gateway_ping_spend_tokens
        yield Pings(kernel, warmings, PingRules(short, settings.gateway_ping_idle_seconds, most))


def _routes(_: PingSettings) -> "Iterable[Resource]":
    from app.wings.warmings.routes import router

    yield router


WING = Wing(settings=PingSettings, services=_services, routes=_routes, tables=("warmings",))
