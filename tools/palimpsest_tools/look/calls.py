"""The command `calls`: a session's recorded calls with their numbers, by which other commands find them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from palimpsest import AsyncPalimpsest
from palimpsest.types import CallItem

from palimpsest_tools.output import Column, counted, output_width, print_json, print_lines, table
from palimpsest_tools.server import Address, connected, run, stop

PAGE_MAX: Final = 1_000
"""Number of items in the largest page that the server returns."""
MAIN: Final = "main"
"""The view that is meant if none is named."""
_COLUMNS: Final = (
    Column("CALL", figures=True),
    Column("TIME (UTC)"),
    Column("EPOCH", figures=True),
    Column("OPENED BY"),
    Column("ESTIMATE", figures=True),
    Column("TARGET", figures=True),
    Column("REPORTED", figures=True),
    Column("LEFT OUT", figures=True),
    Column("OUTCOME"),
)


@dataclass(frozen=True, slots=True)
class NumberedCall:
    """A recorded call with its number: its position among the recorded calls of its line and view, by time, from 1."""

    number: int
    call: CallItem
    opens: bool
    """Whether no earlier call was made from its epoch."""


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """The recorded calls of a session on all of its lines, oldest first. `line` is the line that is meant by its id."""

    line: str
    calls: tuple[NumberedCall, ...]

    @classmethod
    def of(cls, line: str, newest_first: Sequence[CallItem]) -> "RecordedCalls":
        """Number calls in the order in which the server lists them."""
        numbers: Counter[tuple[str, str]] = Counter()
        epochs: set[tuple[str, str, int]] = set()
        numbered = []
        for call in reversed(newest_first):
            numbers[call.line, call.view] += 1
            opens = epoch_of(call) not in epochs
            epochs.add(epoch_of(call))
            numbered.append(NumberedCall(numbers[call.line, call.view], call, opens))
        return cls(line, tuple(numbered))

    @property
    def views(self) -> Mapping[str, int]:
        """The number of calls of each view on the line."""
        return Counter(one.call.view for one in self.calls if one.call.line == self.line)

    @property
    def other_lines(self) -> Mapping[str, int]:
        """The number of calls on each other line."""
        return Counter(one.call.line for one in self.calls if one.call.line != self.line)

    def of_view(self, view: str) -> tuple[NumberedCall, ...]:
        """Return the calls of a view on the line."""
        return tuple(one for one in self.calls if one.call.view == view and one.call.line == self.line)

    def default_view(self) -> str:
        """Return the view that is meant if none is named: `main`, or the last called one if `main` has no calls."""
        called = [one.call.view for one in self.calls if one.call.line == self.line]
        return MAIN if not called or MAIN in called else called[-1]

    def find(self, wanted: str | None, view: str | None) -> NumberedCall | None:
        """Return the call with a number in the view, or with an id, or, for None, the view's last one."""
        of_view = self.of_view(view or self.default_view())
        if wanted is None:
            return of_view[-1] if of_view else None
        if is_number(wanted):
            return next((one for one in of_view if one.number == int(wanted)), None)
        return next((one for one in self.calls if one.call.call_id == wanted), None)


def is_number(wanted: str) -> bool:
    """Return whether a call is named by its number, not by its id."""
    return wanted.isdecimal()


def epoch_of(call: CallItem) -> tuple[str, str, int]:
    """Return the line, the view and the number of a call's epoch."""
    return call.line, call.view, call.epoch


async def read_calls(client: AsyncPalimpsest, session: str) -> RecordedCalls:
    """Read all recorded calls of a session or a line. Raises PalimpsestError."""
    asked = client.session(session)
    line = (await asked.get_session()).line
    return RecordedCalls.of(line, [call async for call in asked.list_calls(limit=PAGE_MAX)])


async def require_call(
    client: AsyncPalimpsest, session: str, wanted: str | None, view: str | None
) -> tuple[RecordedCalls, NumberedCall]:
    """Return a session's calls and one of them (see `RecordedCalls.find`); stop with a line if it is not recorded."""
    recorded = await read_calls(client, session)
    found = recorded.find(wanted, view)
    if found is None:
        stop(missing_call(recorded, session, wanted, view))
    return recorded, found


def missing_call(recorded: RecordedCalls, session: str, wanted: str | None, view: str | None) -> str:
    """Return a line on a call that is not recorded, and on those that are."""
    if not recorded.views:
        return "; ".join([f"session {session!r} has no recorded calls", *about_other_lines(recorded)])
    if view is not None and view not in recorded.views:
        return f"session {session!r} has no recorded calls of view {view!r}; {_views(recorded.views)}"
    name = view or recorded.default_view()
    if wanted is not None and is_number(wanted):
        return f"view {name!r} has no call {wanted}; its recorded calls are 1 to {recorded.views[name]:,}"
    return f"session {session!r} has no recorded call with the id {wanted!r}; palimpsest calls {session} lists all"


def show_calls(address: Address, session: str, view: str | None, limit: int, *, as_json: bool) -> None:
    """Print the last calls of a view, the newest last."""
    run(_show(address, session, view, limit, as_json=as_json))


async def _show(address: Address, session: str, view: str | None, limit: int, *, as_json: bool) -> None:
    async with connected(address) as client:
        recorded = await read_calls(client, session)
        if view is not None and recorded.calls and view not in recorded.views:
            stop(missing_call(recorded, session, None, view))
        name = view or recorded.default_view()
        shown = recorded.of_view(name)[-limit:]
        causes = await read_causes(client, shown)
    if as_json:
        for one in shown:
            print_json({"number": one.number, "cause": causes.get(epoch_of(one.call)), **one.call.to_dict()})
    elif shown:
        print_lines(describe(shown, causes, {one.call.call_id: one.number for one in recorded.calls}, output_width()))
        print_lines(remarks(recorded, name, len(shown)))
    else:
        print_lines([missing_call(recorded, session, None, view)])


async def read_causes(client: AsyncPalimpsest, calls: Iterable[NumberedCall]) -> Mapping[tuple[str, str, int], str]:
    """Return the causes of the calls' epochs, by line, view and number. Raises PalimpsestError."""
    causes = {}
    for line, view in sorted({(one.call.line, one.call.view) for one in calls}):
        async for epoch in client.session(line).list_epochs(view=view, limit=PAGE_MAX):
            causes[line, view, epoch.epoch] = epoch.cause
    return causes


def describe(
    calls: Sequence[NumberedCall], causes: Mapping[tuple[str, str, int], str], numbers: Mapping[str, int], width: int
) -> list[str]:
    """Return a table of calls, with their ids if it is then not wider than `width`; `numbers` are all calls', by id."""
    rows = [
        (
            f"{one.number}",
            f"{one.call.created_at:%m-%d %H:%M:%S}",
            f"{one.call.epoch}",
            causes.get(epoch_of(one.call), "") if one.opens else "",
            f"{one.call.estimate:,}",
            f"{one.call.target:,}",
            "-" if one.call.input_tokens is None else f"{one.call.input_tokens:,}",
            f"{one.call.evicted_tokens:,}",
            outcome(one.call, numbers),
            one.call.call_id,
        )
        for one in calls
    ]
    whole = table((*_COLUMNS, Column("ID")), rows)
    return whole if max(map(len, whole)) <= width else table(_COLUMNS, [row[:-1] for row in rows])


def outcome(call: CallItem, numbers: Mapping[str, int]) -> str:
    """Return a call's outcome in a few words, none if it was not reported, and the call that it retries."""
    if call.outcome is None:
        words = ""
    elif call.overflow:
        words = "too long"
    elif call.outcome.error is not None:
        words = f"error {call.outcome.error.status or call.outcome.error.code or ''}".strip()
    else:
        words = "ok"
    retry = None if call.retry_of is None else f"retry of {numbers.get(call.retry_of, call.retry_of)}"
    return ", ".join(part for part in (words, retry) if part)


def remarks(recorded: RecordedCalls, view: str, shown: int) -> list[str]:
    """Return lines on the calls that a table of the view's last calls leaves out."""
    lines, views = [], recorded.views
    if shown < views[view]:
        lines.append(f"the last {shown:,} of {counted(views[view], 'call')} of view {view}; --limit shows more")
    others = {name: calls for name, calls in views.items() if name != view}
    if others:
        lines.append(f"other views: {_views(others)}")
    return [*lines, *about_other_lines(recorded)]


def about_other_lines(recorded: RecordedCalls) -> list[str]:
    """Return a line about the calls on the session's other lines, if there are any."""
    others = ", ".join(f"{line} has {counted(calls, 'call')}" for line, calls in sorted(recorded.other_lines.items()))
    return [f"other lines of the session: {others}"] if others else []


def _views(views: Mapping[str, int]) -> str:
    return ", ".join(f"--view {name} has {counted(calls, 'call')}" for name, calls in sorted(views.items()))
