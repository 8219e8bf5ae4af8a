"""Sessions that are held out of reduction, and the difference in price between them and the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import exp, log, sqrt
from statistics import pvariance
from typing import Final
from uuid import UUID

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


def is_held_out(tenant_id: UUID, session: str, share: float) -> bool:
    """Return whether a session is in the share (0 to 1) of a tenant's sessions that is held out.

    A session held out of a share is held out of every larger one.
    """
    drawn = blake2b(session.encode(), digest_size=8, key=tenant_id.bytes).digest()
    return int.from_bytes(drawn) < share * 2**64


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
