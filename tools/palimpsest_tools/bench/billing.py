"""Requests as the blocks of a provider's cache, and their bill."""

from collections.abc import Iterable, Iterator
from typing import Final

from app.core.tokens.models import Bill, CacheProfile
from palimpsest_tools.bench.rivals import Sent
from palimpsest_tools.replay.bill import BilledBlock, BilledRequest, Cache, charge

OUTPUT_PRICE: Final = 5.0
"""Price of an output token in input tokens: Anthropic's list prices, 2025 and 2026."""


def charged(sent: Iterable[Sent], rules: CacheProfile) -> Iterator[tuple[Sent, Bill, int]]:
    """Yield the requests in the order in which they are sent, each with its bill and its size in tokens."""
    cache = Cache()
    last: tuple[BilledBlock, ...] = ()
    for request in (one for asked in sent for one in (*asked.before, asked)):
        shown = (BilledBlock(f"{one.seq}:{one.version}", one.tokens, one.joins) for one in request.shown)
        blocks = (BilledBlock(request.opening, request.prefix_tokens), *shown)
        bill, cache = charge(rules, cache, BilledRequest(blocks, _marks(request, blocks, last, rules), request.at))
        last = blocks
        yield request, bill, sum(block.tokens for block in blocks)


def _marks(
    request: Sent, blocks: tuple[BilledBlock, ...], last: tuple[BilledBlock, ...], rules: CacheProfile
) -> tuple[int, ...]:
    if request.marks is not None:
        return tuple(n for n, one in enumerate(request.shown, start=2) if one.seq in request.marks)
    kept = next((n for n, (a, b) in enumerate(zip(last, blocks, strict=False)) if a != b), len(last))
    kept_out = (n for n, one in enumerate(request.shown, start=1) if one.seq == request.once_from != 0)
    end = next(kept_out, len(blocks))
    return breakpoints(blocks[:end], min(kept, end), rules.lookback_blocks or len(blocks), rules.markers)


def breakpoints(blocks: tuple[BilledBlock, ...], kept: int, lookback: int, markers: int) -> tuple[int, ...]:
    """Return a careful client's marker positions: after the prefix, after the blocks of the last request, at the end.

    The `kept` blocks are the last request's. Other markers go where the provider's lookback would not bridge the
    distance.
    """
    end = len(blocks)
    start = max(1, kept)
    between: list[int] = []
    looked = 0
    for number in range(start + 1, end):
        looked += not blocks[number - 1].joins
        if looked == lookback - 1 and len(between) < markers - 3:
            between.append(number)
            looked = 0
    return tuple(sorted({1, min(start, end), *between, end}))[-markers:] if markers else ()
