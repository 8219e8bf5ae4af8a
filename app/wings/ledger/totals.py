"""Sums of ledgers: the cost and gain of each epoch, the whole bill compared with never evicting, and the sessions held
out of reduction compared with the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log, sqrt
from statistics import pvariance
from typing import Final

from app.core.policy.groups import Prices
from app.core.tokens.models import Bill, divide
from app.wings.ledger.cache_use import CountedCall, CountedEpoch, LedgerLine, cacheable_tokens

REPLANNED: Final = frozenset({"start", "model", "window", "policy", "redaction"})
"""Causes of epochs that are planned from scratch: removals by earlier epochs no longer count as theirs."""
POTENTIAL_CALLS_MAX: Final = 1_000
"""The number of observed calls that are priced as if their contexts had been sent: the newest."""
MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Account:
    """An epoch's effect on the bill, in input tokens, by the expected figures.

    `rewritten_tokens` of the cache had to be written again because of it, which is its `cost`. It removed
    `removed_tokens` that `calls_since` (its first call included) would have carried, which is its `gain`. `prices` are
    those of the call that opened it.
    """

    epoch: CountedEpoch
    opened_by: str
    calls: int
    calls_since: int
    rewritten_tokens: int
    removed_tokens: int
    cost: float
    gain: float
    prices: Prices

    @property
    def net(self) -> float:
        """The tokens that it saved in total; negative if it cost more than it saved."""
        return self.gain - self.cost


@dataclass(frozen=True, slots=True)
class CurrencyTotals:
    """Amounts in one currency: the amount billed, output included, and the amount of an append-only context."""

    billed: float = 0.0
    append_only: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all calls of a ledger. `append_only` estimates the same calls with nothing left out, of which
    `beyond_window` would have exceeded the model's window. `unreported_calls` count as expected."""

    calls: int
    unreported_calls: int
    failed_calls: int
    actual: Bill
    expected: Bill
    output_tokens: int
    append_only: Bill
    beyond_window: int
    money: Mapping[str, CurrencyTotals]


@dataclass(frozen=True, slots=True)
class PotentialBill:
    """The price of observed calls with known usage, and the price if their contexts had been sent instead."""

    priced_calls: int = 0
    priced_billed: float = 0.0
    potential_billed: float = 0.0


def accounts(lines: Sequence[LedgerLine], epochs: Sequence[CountedEpoch]) -> tuple[Account, ...]:
    """Return an account of each epoch that one of these calls opened, in the order of the epochs.

    The first epoch counts as opened by the first call, since earlier calls are unknown. Failed calls are ignored.
    """
    lines = [line for line in lines if not line.call.failed]
    firsts: dict[int, int] = {}
    calls: dict[int, int] = {}
    for index, line in enumerate(lines):
        firsts.setdefault(line.call.epoch, index)
        calls[line.call.epoch] = calls.get(line.call.epoch, 0) + 1
    whole = _append_only_bills(lines)
    prices = (line.scale * _carrying_price(line.call, bill) for line, bill in zip(lines, whole, strict=True))
    carried = list(accumulate(prices, initial=0.0))
    replanned = sorted(firsts[e.number] for e in epochs if e.number in firsts and e.cause in REPLANNED)
    made = []
    for epoch in epochs:
        if epoch.number not in firsts:
            continue
        first = firsts[epoch.number]
        end = next((index for index in replanned if index > first), len(lines))
        opening, before = lines[first], lines[first - 1] if first else None
        base = 0 if before is None or epoch.cause in REPLANNED else before.call.left_out
        removed = max(0, opening.call.left_out - base)
        units = round(removed * opening.scale)
        found = _cached_before(opening, before)
        rules = opening.call.rules
        rewritten = max(0, found - opening.expected.read_tokens - units)
        cost = rewritten * max(0.0, rules.write_price - rules.read_price)
        gain = _opening_gain(opening, found, units) + cost + removed * (carried[end] - carried[first + 1])
        made.append(
            Account(
                epoch=epoch,
                opened_by=opening.call.id,
                calls=calls[epoch.number],
                calls_since=end - first,
                rewritten_tokens=rewritten,
                removed_tokens=units,
                cost=cost,
                gain=gain,
                prices=opening.call.prices,
            )
        )
    return tuple(made)


def _carrying_price(call: CountedCall, whole: Bill) -> float:
    """Return the price of a token in the middle of a call's context if nothing had been left out."""
    return call.rules.read_price if whole.read_tokens else call.rules.write_price if whole.write_tokens else 1.0


def _cached_before(line: LedgerLine, before: LedgerLine | None) -> int:
    """Return the tokens that a call would have read if its epoch had changed nothing."""
    if before is None or before.call.provider != line.call.provider:
        return 0
    if before.call.at + before.call.rules.ttl_seconds <= line.call.at:
        return 0
    left = cacheable_tokens(before)
    return left if left >= line.call.rules.minimum_tokens else 0


def _opening_gain(line: LedgerLine, found: int, removed: int) -> float:
    """Return the amount by which the call that opened an epoch is cheaper for it; negative if dearer."""
    total = line.expected.tokens + removed
    cached = line.expected.read_tokens + line.expected.write_tokens
    marked = cached + removed if cached else 0
    return divide(line.call.rules, total, min(found, total), marked).billed - line.expected.billed


def totals(lines: Sequence[LedgerLine]) -> Totals:
    """Return the sums over all lines."""
    money: dict[str, CurrencyTotals] = {}
    append_only = _append_only_bills(lines)
    for line, whole in zip(lines, append_only, strict=True):
        prices, output = line.call.prices, line.call.usage.output_tokens if line.call.usage else None
        ours, theirs = money_of(prices, line.actual.billed, output), money_of(prices, whole.billed, output)
        if ours is not None and theirs is not None:
            sums = money.get(prices.currency, CurrencyTotals())
            money[prices.currency] = CurrencyTotals(sums.billed + ours, sums.append_only + theirs)
    sent = [line for line in lines if not line.call.failed]
    return Totals(
        calls=len(lines),
        unreported_calls=sum(line.call.usage is None for line in sent),
        failed_calls=len(lines) - len(sent),
        actual=sum((line.actual for line in sent), Bill()),
        expected=sum((line.expected for line in sent), Bill()),
        output_tokens=sum(line.call.usage.output_tokens or 0 for line in sent if line.call.usage),
        append_only=sum(append_only, Bill()),
        beyond_window=sum(_whole_tokens(line.call) * line.scale > line.call.window > 0 for line in sent),
        money=money,
    )


def money_of(prices: Prices, billed: float, output: int | None = None) -> float | None:
    """Return the price of input (in input tokens) and output; None if the policy has no prices."""
    if prices.input_per_million is None:
        return None
    return (billed * prices.input_per_million + (output or 0) * (prices.output_per_million or 0)) / MILLION


def _whole_tokens(call: CountedCall) -> int:
    return call.counted + call.left_out


def _append_only_bills(lines: Sequence[LedgerLine]) -> list[Bill]:
    """Return the bill of each call if nothing had ever been left out: only time, another model, new tools or a new
    system prompt then keep a call from reading all of the previous one."""
    last: dict[tuple[str | None, str], LedgerLine] = {}
    bills: list[Bill] = []
    for line in lines:
        call = line.call
        if call.failed:
            bills.append(Bill())
            continue
        before = last.get(call.provider)
        warm = before is not None and call.at < before.call.at + before.call.rules.ttl_seconds
        total = line.actual.tokens + round(call.left_out * line.scale)
        stable = total - round(call.ephemeral * line.scale)
        found = 0
        if before is not None and warm and before.call.front == call.front:
            shared = min(_whole_tokens(before.call) - before.call.ephemeral, _whole_tokens(call) - call.ephemeral)
            found = min(round(shared * before.scale), stable)
        enough = stable >= call.rules.minimum_tokens
        least = call.rules.minimum_tokens
        bills.append(divide(call.rules, total, found if found >= least else 0, stable if enough else 0))
        last[call.provider] = line
    return bills


SESSIONS_LEAST: Final = 30
"""Sessions of a group below which no difference is given."""
_DEVIATIONS: Final = 2.045
"""Standard deviations on either side of an estimate in its 95% interval: Student's t for SESSIONS_LEAST sessions."""


@dataclass(frozen=True, slots=True)
class SessionBill:
    """The reported calls of one session, and the price of their input in uncached input tokens."""

    calls: int
    billed: float


@dataclass(frozen=True, slots=True)
class Saving:
    """The share of a price that is saved, negative if it rose, with the limits of its 95% confidence interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Group:
    """Sessions that were drawn for one group."""

    bills: Sequence[SessionBill]

    @property
    def sessions(self) -> int:
        """The number of sessions."""
        return len(self.bills)

    @property
    def calls(self) -> int:
        """The number of reported calls."""
        return sum(one.calls for one in self.bills)

    @property
    def billed(self) -> float:
        """The price of all calls."""
        return sum(one.billed for one in self.bills)


@dataclass(frozen=True, slots=True)
class Holdout:
    """The sessions held out, and the others."""

    held_out: Group
    enforced: Group

    @property
    def saved_per_call(self) -> Saving | None:
        """The saving per call; None with fewer than SESSIONS_LEAST sessions in a group, or if one session is all of it.

        Sessions are independent of each other, their calls are not.
        """
        return self._saving(lambda bill: bill.calls)

    @property
    def saved_per_session(self) -> Saving | None:
        """The saving per session, which includes calls made in addition; None as `saved_per_call`."""
        return self._saving(lambda _: 1)

    def _saving(self, units: Callable[[SessionBill], int]) -> Saving | None:
        """Return the saving in the price of a unit, from the logarithms of both prices and the variances of these."""
        before, after = (_log_price(one.bills, list(map(units, one.bills))) for one in (self.held_out, self.enforced))
        if before is None or after is None:
            return None
        change, deviation = after[0] - before[0], _DEVIATIONS * sqrt(before[1] + after[1])
        return Saving(1 - exp(change), 1 - exp(change + deviation), 1 - exp(change - deviation))


def _log_price(bills: Sequence[SessionBill], units: Sequence[int]) -> tuple[float, float] | None:
    """Return the logarithm of the price per unit, and the variance of this estimate; None if there are too few bills.

    The variance is the jackknife's: a few long sessions make up most of a bill, and the delta method takes too little
    account of them.
    """
    if len(bills) < SESSIONS_LEAST:
        return None
    billed, counted = sum(one.billed for one in bills), sum(units)
    others = [(billed - one.billed, counted - own) for one, own in zip(bills, units, strict=True)]
    if min(rest for rest, _ in others) <= billed * 1e-9:
        return None
    logs = [log(rest / units_left) for rest, units_left in others]
    return log(billed / counted), (len(logs) - 1) * pvariance(logs)
