"""The rules of a call that its record does not hold: the size above which content goes, and the cache's lifetime."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from palimpsest import AsyncPalimpsest, PalimpsestError
from palimpsest.types import Manifest

from app.core.errors import InvalidPolicy
from app.core.policy.policy import Policy, parse_policy
from app.core.render.formats import FORMATS
from app.core.tokens.budget import threshold
from app.core.tokens.models import UNKNOWN_CACHE, cache_profile, profile_name
from palimpsest_tools.output import duration


@dataclass(frozen=True, slots=True)
class CallRules:
    """Figures by a call's policy: the size above which its context is reduced, and the lifetime of its cache.

    The lifetime is the policy's, else that of the built-in table, which the server's settings may correct, or that of
    the format's provider; None if neither knows the model.
    """

    threshold: int
    cache_seconds: int | None


async def read_rules(client: AsyncPalimpsest, record: Manifest) -> CallRules | None:
    """Return the rules of a call; None if the key or this version of the tools cannot read its policy."""
    try:
        document = (await client.get_policy(record.policy.name, version=record.policy.version)).to_dict()["policy"]
        return rules_of(parse_policy(document), record)
    except (PalimpsestError, InvalidPolicy):
        return None


def rules_of(policy: Policy, record: Manifest) -> CallRules:
    """Return the rules of a call by its policy. Raises InvalidPolicy."""
    tokens = record.tokens
    bound = threshold(policy.trigger, tokens.limit, tokens.target + tokens.outside) - tokens.outside
    otherwise = FORMATS[record.format].cache
    cache = cache_profile(record.model, policy.cache, otherwise=otherwise)
    known = profile_name(record.model) or policy.cache.ttl_seconds or otherwise != UNKNOWN_CACHE
    return CallRules(max(1, bound), cache.ttl_seconds if known else None)


def cache_line(called_at: datetime, seconds: int | None, now: datetime) -> str:
    """Return a line on when the provider's cache of a call expires, or how long ago it was used if that is unknown."""
    used = f"Provider's cache: last used by this call, {duration(now - called_at)} ago"
    if seconds is None:
        return used
    ends = called_at + timedelta(seconds=seconds)
    when = f"expires in {duration(ends - now)}" if ends > now else f"expired {duration(now - ends)} ago"
    return f"{used}; {when}, at {ends:%H:%M:%S}, if it lives {seconds:,} seconds"
