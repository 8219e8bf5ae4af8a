"""A provider's bill for the input of successive requests, with its prefix cache.

A request is a sequence of blocks. Providers cache exact prefixes, so a block is identified by a digest of its bytes,
and a prefix by the digests of all its blocks. Token counts are the caller's; times are epoch seconds.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from app.core.render.formats import FORMATS
from app.core.tokens.models import Bill, CacheProfile, divide

__all__ = ["Bill", "BilledBlock", "BilledRequest", "Cache", "charge", "rules_for"]


@dataclass(frozen=True, slots=True)
class BilledBlock:
    """A block of a request. If it `joins`, lookback counts it together with the block before it."""

    digest: str
    tokens: int
    joins: bool = False


@dataclass(frozen=True, slots=True)
class BilledRequest:
    """A request sent at the time `at`. A breakpoint n is after the first n blocks."""

    blocks: tuple[BilledBlock, ...]
    breakpoints: tuple[int, ...]
    at: float


def rules_for(format: str) -> CacheProfile:
    """Return the cache rules of a format; `blocks`, which no provider accepts, is billed as automatic caching."""
    return FORMATS[format].cache


@dataclass(frozen=True, slots=True)
class Cache:
    """A provider's cache: the expiry time of each cached prefix."""

    expires: Mapping[bytes, float] = field(default_factory=dict)


def charge(rules: CacheProfile, cache: Cache, request: BilledRequest) -> tuple[Bill, Cache]:
    """Return the bill of one request, and the cache after it.

    With `lookback_blocks`, only breakpoints are written, and each looks back that many blocks, including its own.
    Without it, caching is automatic: any earlier prefix is read, in whole steps of `step_tokens`, and a write costs
    extra only if `write_price` is not 1.
    """
    prefixes = _prefixes(request.blocks)
    sizes = tuple(accumulate((block.tokens for block in request.blocks), initial=0))
    live = {prefix: until for prefix, until in cache.expires.items() if until > request.at}
    if rules.lookback_blocks is None:
        hit = _longest_live(prefixes, live)
        stored = tuple(range(1, len(prefixes)))
    else:
        stored = tuple(n for n in request.breakpoints if sizes[n] >= rules.minimum_tokens)
        hit = max((_look_back(n, request.blocks, prefixes, live, rules.lookback_blocks) for n in stored), default=0)
    used = {prefix for prefix in prefixes[1 : hit + 1] if prefix in live}
    until = request.at + rules.ttl_seconds
    kept = live | dict.fromkeys(used | {prefixes[n] for n in stored}, until)
    return divide(rules, sizes[-1], sizes[hit], sizes[max(stored, default=0)]), Cache(kept)


def _prefixes(blocks: tuple[BilledBlock, ...]) -> tuple[bytes, ...]:
    """Return a digest for each prefix, from the empty one to the whole request."""

    def extend(prefix: bytes, block: BilledBlock) -> bytes:
        return hashlib.sha256(prefix + block.digest.encode()).digest()

    return tuple(accumulate(blocks, extend, initial=b""))


def _longest_live(prefixes: tuple[bytes, ...], live: Mapping[bytes, float]) -> int:
    return next((n for n in range(len(prefixes) - 1, 0, -1) if prefixes[n] in live), 0)


def _look_back(
    n: int, blocks: tuple[BilledBlock, ...], prefixes: tuple[bytes, ...], live: Mapping[bytes, float], limit: int
) -> int:
    """Return the length in blocks of the nearest cached prefix within `limit` blocks before breakpoint `n`, else 0."""
    looked = 0
    while n > 0 and looked < limit:
        if prefixes[n] in live:
            return n
        looked += not blocks[n - 1].joins
        n -= 1
    return 0
