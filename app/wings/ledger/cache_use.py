"""The cache ledger of a view: at each call the cache use to expect of the provider, and the use that it reported.

The contents of a provider's cache follow from the record alone. Within an epoch, a call begins with the bytes of the
previous one (I5); across epochs, with those before the first change (`CountedEpoch.stable`). Entries live for the
model's time to live after each use, and markers find the entries within their lookback. So each call has an
expectation, which `core/tokens/models` prices, and a reason why anything that the previous call had left was not read.

Two units meet here. Positions are in the estimator's own tokens, bills in the provider's. The `scale` of a call
converts them: its reported input over its own count; before one is reported, the provider's last scale, or the
calibrated estimate over the count.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from app.core import dataclass, field
from app.core.policy.groups import Prices
from app.core.tokens.models import Bill, CacheProfile, divide, priced

TOLERANCE_TOKENS: Final = 256
"""Two steps of OpenAI's cache: automatic caches round at both ends."""
TOLERANCE_SHARE: Final = 0.05
"""Share of a call's input by which a part's true count may differ when one scale converts all parts."""
IDLE_SHARE: Final = 0.5
"""Share of the time to live after which an idle entry may be gone: OpenAI promises five of its ten minutes, and the
request may have been sent later than recorded."""
ENTRIES_MAX: Final = 64
"""Number of newest entries kept for each cache; older ones are further back than markers reach."""
ROUNDING: Final = 4
"""Tokens by which a position may be off after conversion from calibrated tokens and back."""


@dataclass(frozen=True, slots=True)
class LedgerBreakpoint:
    """A cache breakpoint after event `seq`, and the number of tokens and blocks up to it (None: not recorded)."""

    seq: int
    tokens: int
    blocks: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage that a provider reported. `input_tokens` is all of the input; None means not reported."""

    input_tokens: int
    read_tokens: int | None = None
    write_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CountedCall:
    """A recorded call. Tokens are in the estimator's own count; `estimate` is the whole in calibrated tokens.

    `left_out` are the tokens that its evictions saved, `window` is the model's in the provider's tokens. Content that
    was sent outside the request comes first: it counts as part of `tools` and of every position. A `failed` call was
    not billed and cached nothing. `front` are the seqs of its tool list and system prompt.
    """

    id: str
    at: float
    head: int
    epoch: int
    model: str | None
    format: str
    rules: CacheProfile
    counted: int
    estimate: int
    tools: int = 0
    system: int = 0
    ephemeral: int = 0
    left_out: int = 0
    window: int = 0
    breakpoints: tuple[LedgerBreakpoint, ...] = ()
    usage: Usage | None = None
    failed: bool = False
    prices: Prices = field(default_factory=Prices)
    front: tuple[int, int] = (0, 0)

    @property
    def stable(self) -> int:
        """The number of tokens that the next call of the epoch begins with."""
        return max(0, self.counted - self.ephemeral)

    @property
    def provider(self) -> tuple[str | None, str]:
        """The cache that the call uses: each model and format has its own."""
        return self.model, self.format


@dataclass(frozen=True, slots=True)
class CountedEpoch:
    """An epoch. `stable` tokens precede its first change from the previous epoch, which is at `changed_seq`."""

    number: int
    cause: str
    changed_seq: int = 0
    stable: int = 0
    tools_seq: int = 0
    system_seq: int = 0


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One call's line. `expected` and `actual` are in the provider's tokens; `actual` is as expected if not reported.

    `missed` is the number of tokens that the previous call left in the cache and this one did not read. `cause`
    explains them, or a difference between report and expectation; it is None if both are within the tolerance.
    `diverges_at` is the seq of the first block that was not read, as precisely as the record allows. `idle` is in
    seconds since the last call that did not fail.
    """

    call: CountedCall
    scale: float
    expected: Bill
    actual: Bill
    missed: int
    cause: str | None
    diverges_at: int | None
    idle: float | None


class _Entry(NamedTuple):
    """A cached prefix: its epoch, its end in the estimator's tokens and in blocks, the scale of the call that stored
    it, and the time in epoch seconds until which it lives."""

    epoch: int
    tokens: int
    blocks: int | None
    scale: float
    until: float


Common = Callable[[int, int], float]
"""Number of the estimator's tokens that the contexts of two epochs, given by number, begin with in common."""


class Caches:
    """The providers' caches as the calls of a view leave them."""

    def __init__(self) -> None:
        self.epochs: dict[int, CountedEpoch] = {}
        self._fronts: dict[int, tuple[int, int]] = {}
        self._common: Common = common_prefix({}, ())
        self._held: dict[tuple[str | None, str], tuple[_Entry, ...]] = {}
        self._scales: dict[tuple[str | None, str], float] = {}
        self._before: LedgerLine | None = None

    def lines(self, calls: Sequence[CountedCall], epochs: Sequence[CountedEpoch]) -> tuple[LedgerLine, ...]:
        """Return the lines of the next calls, and add what they leave. `epochs` are those opened since, in order."""
        if epochs:
            self.epochs |= {epoch.number: epoch for epoch in epochs}
            self._fronts |= {call.epoch: (call.tools, call.system) for call in calls}
            self._common = common_prefix(self._fronts, tuple(self.epochs.values()))
        return tuple(map(self._next_line, calls))

    def _next_line(self, call: CountedCall) -> LedgerLine:
        scale = _scale(call, self._scales.get(call.provider))
        if call.failed:
            return LedgerLine(call, scale, Bill(), Bill(), 0, None, None, _idle(call, self._before))
        if call.usage is not None:
            self._scales[call.provider] = scale
        entries = self._held.get(call.provider, ())
        found = _cached_prefix(call, scale, entries, self._common)
        total = call.usage.input_tokens if call.usage else round(call.counted * scale)
        marked = max((round(mark.tokens * scale) for mark in _cached_marks(call, scale)), default=0)
        expected = divide(
            call.rules, total, min(total, 0 if found is None else round(found.tokens * found.scale)), min(total, marked)
        )
        self._before = _line(call, scale, expected, found, self._before, self._common, self.epochs)
        self._held[call.provider] = _entries_after(call, scale, entries, found, self._common)
        return self._before


def common_prefix(fronts: Mapping[int, tuple[int, int]], epochs: Sequence[CountedEpoch]) -> Common:
    """Return a function that returns the number of tokens that the contexts of two epochs begin with in common.

    `fronts` are the tokens of each epoch's tools and system prompt. These are compared for an epoch planned from
    scratch, which records no common prefix.
    """
    numbers = [epoch.number for epoch in epochs]
    stable = [0] * len(epochs)
    for index, epoch in enumerate(epochs[1:], start=1):
        tools, system = fronts.get(epoch.number, (0, 0))
        same_tools = epoch.tools_seq == epochs[index - 1].tools_seq
        same_system = same_tools and epoch.system_seq == epochs[index - 1].system_seq
        stable[index] = max(epoch.stable, tools * same_tools + system * same_system)

    @lru_cache(maxsize=256)
    def common(one: int, other: int) -> float:
        if one == other:
            return math.inf
        first, last = bisect_right(numbers, min(one, other)), bisect_right(numbers, max(one, other))
        return min(stable[first:last], default=0)

    return common


def _scale(call: CountedCall, last: float | None) -> float:
    if not call.counted:
        return 1.0
    if call.usage is not None and call.usage.input_tokens:
        return call.usage.input_tokens / call.counted
    return last or call.estimate / call.counted


def _cached_marks(call: CountedCall, scale: float) -> tuple[LedgerBreakpoint, ...]:
    """Return the places up to which the provider caches: the markers, or for an automatic cache the stable part."""
    if call.rules.lookback_blocks is None:
        return (LedgerBreakpoint(call.head, call.stable, None),) if call.stable else ()
    return tuple(mark for mark in call.breakpoints if mark.tokens * scale >= call.rules.minimum_tokens)


def _cached_prefix(call: CountedCall, scale: float, entries: Sequence[_Entry], common: Common) -> _Entry | None:
    """Return the longest cached prefix of this call; an automatic cache's is cut where the two diverge."""
    best: _Entry | None = None
    stored = _cached_marks(call, scale)
    for entry in reversed(entries):
        if entry.until <= call.at or (best is not None and entry.tokens <= best.tokens):
            continue
        shared = common(entry.epoch, call.epoch)
        if call.rules.lookback_blocks is None:
            tokens = int(min(entry.tokens, shared, call.stable))
            if best is None or tokens > best.tokens:
                best = entry._replace(tokens=tokens)
        elif entry.tokens <= shared + ROUNDING and any(
            _reaches(mark, entry, call.rules.lookback_blocks) for mark in stored
        ):
            best = entry
    return best


def _reaches(mark: LedgerBreakpoint, entry: _Entry, lookback: int) -> bool:
    if entry.tokens > mark.tokens + ROUNDING:
        return False
    return mark.blocks is None or entry.blocks is None or 0 <= mark.blocks - entry.blocks < lookback


def _entries_after(
    call: CountedCall, scale: float, entries: Sequence[_Entry], found: _Entry | None, common: Common
) -> tuple[_Entry, ...]:
    """Return the cached entries after the call: the ones it read live longer, the ones it stored are new."""
    until = call.at + call.rules.ttl_seconds
    read = found.tokens if found else 0
    stored = _cached_marks(call, scale)
    places = {(mark.tokens, mark.blocks) for mark in stored}
    whole = call.stable if call.rules.lookback_blocks is None else 0  # an automatic cache has all prefixes of it, too
    older = []
    for entry in entries:
        if entry.until <= call.at:
            continue
        if entry.epoch == call.epoch and (
            (entry.tokens, entry.blocks) in places or (entry.tokens <= whole and entry.until <= until)
        ):
            continue
        used = entry.tokens <= read + ROUNDING and entry.tokens <= common(entry.epoch, call.epoch) + ROUNDING
        older.append(entry._replace(until=until) if used and until > entry.until else entry)
    new = [_Entry(call.epoch, mark.tokens, mark.blocks, scale, until) for mark in stored]
    return tuple([*older, *new][-ENTRIES_MAX:])


def _line(
    call: CountedCall,
    scale: float,
    expected: Bill,
    found: _Entry | None,
    before: LedgerLine | None,
    common: Common,
    epochs: Mapping[int, CountedEpoch],
) -> LedgerLine:
    actual = _actual_bill(call, expected)
    idle = _idle(call, before)
    left = 0 if before is None else min(cacheable_tokens(before), round(call.stable * scale))
    missed = max(0, left - actual.read_tokens)
    margin = tolerance(actual.tokens)
    cause, place = None, None
    if call.usage is not None and call.usage.read_tokens is None and expected.read_tokens > margin:
        cause = "not_reported"
    elif actual.read_tokens > expected.read_tokens + margin:
        cause = "elsewhere"
    elif actual.read_tokens < expected.read_tokens - margin:
        cause = _reason_for_less(call, scale, expected, found, idle or 0.0)
        place = _seq_after(before, call, actual.read_tokens / scale)
    elif missed > margin and before is not None:
        cause = _reason(call, scale, before, common, epochs)
        place = _first_unread(call, before, cause, epochs)
    return LedgerLine(call, scale, expected, actual, missed if missed > margin else 0, cause, place, idle)


def _idle(call: CountedCall, before: LedgerLine | None) -> float | None:
    return None if before is None else max(0.0, call.at - before.call.at)


def tolerance(tokens: int) -> float:
    """Return the largest insignificant difference between report and expectation for an input of `tokens`."""
    return max(TOLERANCE_TOKENS, TOLERANCE_SHARE * tokens)


def _actual_bill(call: CountedCall, expected: Bill) -> Bill:
    """Return the bill as reported, or as expected if no cache use was reported."""
    usage = call.usage
    if usage is None or usage.read_tokens is None:
        return expected
    read = min(usage.read_tokens, usage.input_tokens)
    write = min(usage.write_tokens or 0, usage.input_tokens - read)
    return priced(call.rules, read, write, usage.input_tokens - read - write)


def cacheable_tokens(line: LedgerLine) -> int:
    """Return the provider's tokens that a call leaves for the next one to read, ignoring the cacheable minimum."""
    call = line.call
    if call.rules.lookback_blocks is None:
        return round(call.stable * line.scale)
    return max((round(mark.tokens * line.scale) for mark in call.breakpoints), default=0)


def _reason(
    call: CountedCall, scale: float, before: LedgerLine, common: Common, epochs: Mapping[int, CountedEpoch]
) -> str:
    """Return why the tokens that the previous call left are not expected to be read."""
    last = before.call
    if call.provider != last.provider:
        return "model" if call.model != last.model else "format"
    if min(cacheable_tokens(before), round(call.stable * scale)) < last.rules.minimum_tokens:
        return "below_minimum"
    if last.at + last.rules.ttl_seconds <= call.at:
        return "time_to_live"
    if common(last.epoch, call.epoch) * before.scale + ROUNDING < cacheable_tokens(before):
        one, other = epochs.get(last.epoch), epochs.get(call.epoch)
        if one is not None and other is not None and one.tools_seq != other.tools_seq:
            return "tools"
        if one is not None and other is not None and one.system_seq != other.system_seq:
            return "system_prompt"
        return "epoch"
    return "lookback" if call.breakpoints else "markers"


def _reason_for_less(call: CountedCall, scale: float, expected: Bill, found: _Entry | None, idle: float) -> str:
    """Return the likeliest reason why less was read than expected."""
    if idle > IDLE_SHARE * call.rules.ttl_seconds:
        return "time_to_live"
    if expected.read_tokens < call.rules.minimum_tokens * (1 + TOLERANCE_SHARE):
        return "below_minimum"
    if found is not None and not _has_marker(call, scale, found):
        return "lookback"
    return "provider"


def _has_marker(call: CountedCall, scale: float, found: _Entry) -> bool:
    """Return whether a marker is at the entry itself, so that no lookback is needed."""
    if call.rules.lookback_blocks is None:
        return True
    return any(abs(mark.tokens - found.tokens) <= ROUNDING for mark in _cached_marks(call, scale))


def _first_unread(call: CountedCall, before: LedgerLine, cause: str, epochs: Mapping[int, CountedEpoch]) -> int:
    """Return the seq of the first block that was not read, for a cause that follows from the record."""
    epoch = epochs.get(call.epoch)
    if epoch is None or cause not in ("epoch", "tools", "system_prompt", "lookback", "markers"):
        return 1
    if cause in ("lookback", "markers"):
        return _seq_after(before, call, 0)
    if cause == "epoch":
        return epoch.changed_seq or max(epoch.tools_seq, epoch.system_seq) + 1
    return epoch.tools_seq if cause == "tools" else epoch.system_seq


def _seq_after(before: LedgerLine | None, call: CountedCall, read: float) -> int:
    """Return the seq after the last known position up to which `read` tokens were read."""
    places = [(mark.tokens, mark.seq) for mark in call.breakpoints]
    if before is not None:
        places += [(mark.tokens, mark.seq) for mark in before.call.breakpoints]
        places.append((before.call.stable, before.call.head))
    margin = tolerance(round(read))
    return max((seq for tokens, seq in places if tokens <= read + margin), default=0) + 1
