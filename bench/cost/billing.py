"""Requests as the provider's cache sees them, and what they are billed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from app.core.tokens.cache_profiles import ANTHROPIC, ANTHROPIC_HOUR, OPENAI, OPENAI_PAID, CacheProfile
from app.replay.bill import Bill, BilledBlock, BilledRequest, Cache, charge
from bench.cost.rivals import Sent
from bench.cost.sessions import Session

PROFILES: Final = {
    "Anthropic, 5 minutes": ANTHROPIC,
    "Anthropic, 1 hour": ANTHROPIC_HOUR,
    "OpenAI": OPENAI,
    "OpenAI, paid writes": OPENAI_PAID,
}


@dataclass(slots=True)
class Tally:
    """The outcome of one or more sessions under one policy."""

    bill: Bill = field(default_factory=Bill)
    peak: int = 0
    epochs: int = 0
    used: int = 0
    seen: int = 0
    used_in_results: int = 0
    seen_in_results: int = 0
    sizes: tuple[tuple[int, bool], ...] = ()
    """Of the last session: tokens of each call, and whether it opened an epoch."""

    @property
    def grounding(self) -> float:
        """Of the values seen in tool results only, the share still visible when they were used."""
        return self.seen_in_results / self.used_in_results if self.used_in_results else 1.0

    @property
    def grounding_of_all(self) -> float:
        """The same of all values used."""
        return self.seen / self.used if self.used else 1.0


def account(tally: Tally, session: Session, sent: Iterable[Sent], rules: CacheProfile) -> None:
    """Bill the requests of one session, and see what of the values used was visible."""
    cache = Cache()
    last: tuple[BilledBlock, ...] = ()
    sizes: list[tuple[int, bool]] = []
    for call, request in zip(session.calls, sent, strict=True):
        shown = (BilledBlock(f"{one.seq}:{one.version}", one.tokens, one.joins) for one in request.shown)
        blocks = (BilledBlock("prefix", request.prefix_tokens), *shown)
        kept = next((n for n, (a, b) in enumerate(zip(last, blocks, strict=False)) if a != b), len(last))
        marks = breakpoints(blocks, min(kept, len(blocks)), rules.lookback_blocks or len(blocks), rules.markers)
        if request.marks is not None:
            marks = tuple(n for n, one in enumerate(request.shown, start=2) if one.seq in request.marks)
        bill, cache = charge(rules, cache, BilledRequest(blocks, marks, request.at))
        last = blocks
        size = sum(block.tokens for block in blocks)
        tally.bill += bill
        tally.peak = max(tally.peak, size)
        tally.epochs += request.cause is not None
        sizes.append((size, request.cause is not None))
        visible = {one.seq: one.text for one in request.shown}
        fixed = {e.seq for e in session.events[: call.events] if not e.rendered}
        for value in call.values:
            seen = any(
                seq in fixed or (seq in visible and (visible[seq] is None or value.text in (visible[seq] or "")))
                for seq in value.holders
            )
            tally.used += 1
            tally.seen += seen
            tally.used_in_results += value.only_results
            tally.seen_in_results += seen and value.only_results
    tally.sizes = tuple(sizes)


def breakpoints(blocks: tuple[BilledBlock, ...], kept: int, lookback: int, markers: int) -> tuple[int, ...]:
    """Where a careful client's markers stand: behind the prefix, behind what is as in the last request, at the end.

    `kept` is how many blocks are; those that are left go between there and the end, where that is too far for one step.
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
