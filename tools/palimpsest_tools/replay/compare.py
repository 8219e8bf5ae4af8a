"""The replay of a recording under two policies, A and B, on the same server."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from palimpsest import AsyncPalimpsest

from app.core.log.events import Json
from palimpsest_tools.recordings.recording import Recording
from palimpsest_tools.replay.bill import Bill
from palimpsest_tools.replay.options import NamedPolicy, Options
from palimpsest_tools.replay.report import CallReport, SessionReport, relative_difference, total_bill
from palimpsest_tools.replay.run import replay_session


@dataclass(frozen=True, slots=True)
class Pair:
    """The call `number` under both policies; a side is None if the server refused it."""

    number: int
    a: CallReport | None
    b: CallReport | None

    @property
    def difference(self) -> float | None:
        """B's bill minus A's, in input-token equivalents; None if a side was refused."""
        return None if self.a is None or self.b is None else self.b.bill.billed - self.a.bill.billed


@dataclass(frozen=True, slots=True)
class Comparison:
    """The reports of a recording under both policies, in the tokens of A's estimator."""

    a: SessionReport
    b: SessionReport

    @property
    def session(self) -> None:
        """No single session: there are two."""

    @property
    def failures(self) -> bool:
        """Whether anything failed under either policy."""
        return bool(self.a.failures or self.b.failures)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All calls that succeeded under either policy, in order."""
        return pairs(self.a.calls, self.b.calls)

    @property
    def turning_points(self) -> tuple[Pair, ...]:
        """The first and the last call, and those at which a policy opened an epoch."""
        found: list[Pair] = []
        epochs: tuple[int | None, int | None] = (None, None)
        rows = self.pairs
        for row in rows:
            now = (epochs[0] if row.a is None else row.a.epoch, epochs[1] if row.b is None else row.b.epoch)
            if now != epochs or row is rows[-1]:
                found.append(row)
            epochs = now
        return tuple(found)

    def as_json(self) -> dict[str, Json]:
        """Return the recording's line of `--json`."""
        return {
            "recording": self.a.id,
            "ok": not self.failures,
            "a": self.a.as_json(),
            "b": self.b.as_json(),
            "calls": [
                {"number": row.number, "a": _call(row.a), "b": _call(row.b), "difference": _rounded(row.difference)}
                for row in self.pairs
            ],
            "difference": difference_json(self.a.bill, self.b.bill),
        }


def in_tokens_of(a: Sequence[CallReport], b: Sequence[CallReport]) -> tuple[CallReport, ...]:
    """Convert B's calls to tokens of A's estimator, if another one counted them.

    Counts by different estimators cannot be compared. So A's tokens per character of the request, at the same call or
    else at the last one that succeeded on both sides, are applied to B's requests.
    """
    ours = {call.number: call for call in a}
    factor, scaled = 1.0, []
    for call in b:
        other = ours.get(call.number)
        if other is not None and call.estimate and other.chars:
            rate = (other.estimate / other.chars) / (call.estimate / call.chars)
            factor = 1.0 if other.estimator == call.estimator else rate
        scaled.append(call if factor == 1.0 else _scaled(call, factor))
    return tuple(scaled)


def _scaled(call: CallReport, factor: float) -> CallReport:
    return replace(
        call,
        estimate=round(call.estimate * factor),
        target=round(call.target * factor),
        saved_tokens=round(call.saved_tokens * factor),
        bill=_scaled_bill(call.bill, factor),
        everything=_scaled_bill(call.everything, factor),
    )


def _scaled_bill(bill: Bill, factor: float) -> Bill:
    read, write, fresh = (round(tokens * factor) for tokens in (bill.read_tokens, bill.write_tokens, bill.fresh_tokens))
    return Bill(read, write, fresh, bill.billed * factor)


def pairs(a: Sequence[CallReport], b: Sequence[CallReport]) -> tuple[Pair, ...]:
    """Pair the calls of both sides by number."""
    ours, theirs = {call.number: call for call in a}, {call.number: call for call in b}
    return tuple(Pair(number, ours.get(number), theirs.get(number)) for number in sorted(ours | theirs))


async def compare_session(
    client: AsyncPalimpsest,
    recording: Recording,
    id: str,
    options: Options,
    policies: tuple[NamedPolicy, NamedPolicy],
    on_call: Callable[[CallReport, int], None],
) -> Comparison:
    """Replay a recording into the new sessions `id`.a and `id`.b concurrently.

    `on_call` gets each successful call and its side, 0 for A and 1 for B.
    """

    async def side(index: int, policy: NamedPolicy) -> SessionReport:
        own = replace(options, policy=policy.policy, outcomes=False)
        name = f"{id}.{'ab'[index]}"
        return await replay_session(client, recording, name, own, lambda call: on_call(call, index))

    a, b = await asyncio.gather(side(0, policies[0]), side(1, policies[1]))
    counted = [report.calls[0].estimator for report in (a, b) if report.calls]
    notes = b.notes
    if len(set(counted)) > 1:
        notes = (*notes, f"counted by {counted[1]}, shown in tokens of {counted[0]}, by the length of what was sent")
    return Comparison(a, replace(b, calls=in_tokens_of(a.calls, b.calls), notes=notes))


def bills(comparisons: Sequence[Comparison]) -> tuple[Bill, Bill]:
    """Return the bills of all recordings under A and under B."""
    return total_bill([one.a.bill for one in comparisons]), total_bill([one.b.bill for one in comparisons])


def compared_total_json(comparisons: Sequence[Comparison], server: str) -> dict[str, Json]:
    """Return the last line of `--json`."""
    a, b = bills(comparisons)
    return {
        "total": {
            "ok": not any(one.failures for one in comparisons),
            "server": server,
            "sessions": len(comparisons),
            "calls": {
                "a": sum(len(one.a.calls) for one in comparisons),
                "b": sum(len(one.b.calls) for one in comparisons),
            },
            "failures": sum(len(one.a.failures) + len(one.b.failures) for one in comparisons),
            "a": _bill(a),
            "b": _bill(b),
            "difference": difference_json(a, b),
        }
    }


def difference_json(a: Bill, b: Bill) -> dict[str, Json]:
    """Return B minus A, absolute and relative to A: -0.25 is a quarter less."""
    return {
        "tokens": b.tokens - a.tokens,
        "billed": round(b.billed - a.billed, 1),
        "ratio": _ratio(relative_difference(b, a)),
    }


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _call(call: CallReport | None) -> dict[str, Json] | None:
    if call is None:
        return None
    return {
        "estimate": call.estimate,
        "target": call.target,
        "epoch": call.epoch,
        "left_out": dict(call.left_out),
        "saved_tokens": call.saved_tokens,
        **_bill(call.bill),
    }


def _bill(bill: Bill) -> dict[str, Json]:
    return {
        "read_tokens": bill.read_tokens,
        "write_tokens": bill.write_tokens,
        "fresh_tokens": bill.fresh_tokens,
        "billed": round(bill.billed, 1),
    }
