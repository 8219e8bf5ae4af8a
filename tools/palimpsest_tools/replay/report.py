"""Reports of a replay: of each call, of each session, and in total."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from palimpsest import PalimpsestError

from app.core.log.events import Json
from palimpsest_tools.replay.bill import Bill
from palimpsest_tools.server import CheckFailed, reason_of


@dataclass(frozen=True, slots=True)
class Failure:
    """A refused request, or a check that failed; `type` is the problem's slug or the check's name."""

    where: str
    type: str
    detail: str

    @classmethod
    def of(cls, where: str, error: PalimpsestError | CheckFailed) -> "Failure":
        """Return the failure that an error is."""
        return cls(where, *reason_of(error))

    def as_json(self) -> dict[str, Json]:
        """Return the failure for `--json`."""
        return {"where": self.where, "type": self.type, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class CallReport:
    """One context. `left_out` counts events by disposition; `everything` is the bill for leaving nothing out.

    Tokens are counted by `estimator`; `chars` is the length of the request's JSON.
    """

    number: int
    estimate: int
    target: int
    epoch: int
    left_out: Mapping[str, int]
    saved_tokens: int
    bill: Bill
    everything: Bill
    estimator: str = ""
    chars: int = 0


@dataclass(frozen=True, slots=True)
class SessionReport:
    """One session. `calls` are the successful ones; `events` is the log's length at the end."""

    id: str
    session: str
    format: str
    window_tokens: int | None
    calls: tuple[CallReport, ...]
    failures: tuple[Failure, ...]
    events: int
    notes: tuple[str, ...] = ()

    @property
    def bill(self) -> Bill:
        """The bill for the input of all successful calls."""
        return total_bill([call.bill for call in self.calls])

    @property
    def everything(self) -> Bill:
        """The bill for the input of the same calls with nothing left out."""
        return total_bill([call.everything for call in self.calls])

    @property
    def epochs(self) -> int:
        """The number of epochs of its calls."""
        return len({call.epoch for call in self.calls})

    def as_json(self) -> dict[str, Json]:
        """Return the session's line of `--json`."""
        last = self.calls[-1] if self.calls else None
        return {
            "recording": self.id,
            "session": self.session,
            "format": self.format,
            "ok": not self.failures,
            "window_tokens": self.window_tokens,
            "events": self.events,
            "calls": len(self.calls),
            "epochs": self.epochs,
            "context_tokens_max": max((call.estimate for call in self.calls), default=0),
            "target_tokens": last.target if last else None,
            "left_out_at_end": dict(last.left_out) if last else {},
            "input": bill_json(self.bill, self.everything),
            "failures": [failure.as_json() for failure in self.failures],
            "notes": list(self.notes),
        }


def total_json(reports: Sequence[SessionReport], server: str) -> dict[str, Json]:
    """Return the last line of `--json`."""
    bill, everything = totals(reports)
    return {
        "total": {
            "ok": not any(report.failures for report in reports),
            "server": server,
            "sessions": len(reports),
            "events": sum(report.events for report in reports),
            "calls": sum(len(report.calls) for report in reports),
            "failures": sum(len(report.failures) for report in reports),
            "input": bill_json(bill, everything),
        }
    }


def totals(reports: Sequence[SessionReport]) -> tuple[Bill, Bill]:
    """Return the bill of all sessions, and the bill for sending everything."""
    return total_bill([report.bill for report in reports]), total_bill([report.everything for report in reports])


def total_bill(bills: Sequence[Bill]) -> Bill:
    """Return the sum of bills."""
    return sum(bills, Bill())


def relative_difference(bill: Bill, everything: Bill) -> float | None:
    """Return the difference to another bill, relative to that: -0.25 is a quarter less. None if the other is 0."""
    return bill.billed / everything.billed - 1 if everything.billed else None


def bill_json(bill: Bill, everything: Bill) -> dict[str, Json]:
    """Return tokens and input-token equivalents of the bill and of sending everything."""
    difference = relative_difference(bill, everything)
    return {
        "read_tokens": bill.read_tokens,
        "write_tokens": bill.write_tokens,
        "fresh_tokens": bill.fresh_tokens,
        "read_share": round(bill.read_share, 4),
        "billed": round(bill.billed, 1),
        "everything_tokens": everything.tokens,
        "everything_read_share": round(everything.read_share, 4),
        "everything_billed": round(everything.billed, 1),
        "against_everything": None if difference is None else round(difference, 4),
    }
