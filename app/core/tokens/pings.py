"""Pings: a client's last request sent again without an answer, so that the provider keeps its cache.

The rules alone: the requests that can be pinged, the body of a ping, and the time of the next one. Prices are in
uncached input tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from app.core.log.events import Json
from app.core.tokens.models import ANTHROPIC, CacheProfile
from app.core.wire.bodies import Body
from app.core.wire.replies import mapping

LEAD_SHARE: Final = 0.1
LEAD_SECONDS_MAX: Final = 60.0
"""A ping is sent before the cache expires, by this share of its lifetime and at most by these seconds."""

StopReason = Literal["gone", "spent", "not-worthwhile", "expired", "continued", "failed", "refused", "missed"]


class PingsEnded(Exception):
    """The end of a series of pings; the message is a `StopReason`."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class PingRules:
    """The operator's limits. `short`: entries that live for minutes are kept, too. `idle_seconds` is the time after the
    client's last call that a cache is kept, `spend_tokens` the price of all pings of a session."""

    short: bool
    idle_seconds: float
    spend_tokens: int


@dataclass(frozen=True, slots=True)
class KeptCache:
    """The provider's cache of a client's last call, with the times of that call and of the last use, in epoch seconds.

    `price` is that of the pings since that call.
    """

    tokens: int
    profile: CacheProfile
    called_at: float
    used_at: float
    price: float = 0.0

    @property
    def expires_at(self) -> float:
        """The time at which the provider drops it."""
        return self.used_at + self.profile.ttl_seconds

    @property
    def ping_price(self) -> float:
        """The price of reading it once."""
        return self.tokens * self.profile.read_price

    def after_ping(self, at: float, price: float) -> "KeptCache":
        """Return the cache after a ping that was sent `at` a time for a price."""
        return replace(self, used_at=at, price=self.price + price)


def can_keep(profile: CacheProfile, tokens: int, rules: PingRules) -> bool:
    """Return whether pings may keep a cache of `tokens`."""
    return tokens > 0 and (rules.short or profile.ttl_seconds > ANTHROPIC.ttl_seconds)


def can_ping(call: Mapping[str, Json]) -> bool:
    """Return whether Anthropic takes a call without an answer, and its cache is then the same.

    It refuses thinking with a budget, forced tools and structured outputs, and a ping that leaves them out has a cache
    of its own. A ping of a thread would add to it.
    """
    return (
        mapping(call.get("thinking")).get("type") != "enabled"
        and mapping(call.get("tool_choice")).get("type") not in ("any", "tool")
        and mapping(call.get("output_config")).get("format") is None
        and call.get("output_format") is None
        and call.get("thread") is None
    )


def ping_body(body: Body) -> bytes:
    """Return the body of a ping for that of a call."""
    return body.with_members({"max_tokens": "0"}, without=frozenset({"stream"})).encode()


def next_ping(cache: KeptCache, rules: PingRules, spent: float) -> float:
    """Return the time of the next ping, in epoch seconds; `spent` is the price of all pings of the session so far.

    Raises PingsEnded if the client will have been gone for too long, if the session's limit is reached, or if the pings
    since the last call would cost more than the next call saves by them.
    """
    lead = min(LEAD_SECONDS_MAX, LEAD_SHARE * cache.profile.ttl_seconds)
    at = cache.expires_at - lead
    if at > cache.called_at + rules.idle_seconds:
        raise PingsEnded("gone")
    if spent + cache.ping_price > rules.spend_tokens:
        raise PingsEnded("spent")
    if cache.price + cache.ping_price > cache.tokens * (cache.profile.write_price - cache.profile.read_price):
        raise PingsEnded("not-worthwhile")
    return at
