"""The words for an event, and for how calls showed it."""

from collections.abc import Mapping, Sequence
from typing import Final

from palimpsest.types import EventOut, HistoryItem

from palimpsest_tools.look.events import event_text, excerpt
from palimpsest_tools.output import counted, moment

_EXCERPT_WIDTH: Final = 70
_WORDS: Final[Mapping[str, str]] = {
    "verbatim": "shown whole",
    "stubbed": "shown as a stub",
    "replaced": "shown by other words",
    "summarized": "replaced by a summary",
    "dropped": "left out",
    "not_rendered": "not for the model",
    "redacted": "shown as erased",
}


def describe_event(event: EventOut, text: str | None = None) -> str:
    """Return a line that describes an event, with an excerpt of where `text` occurs in it."""
    kind = f"{event.type} of {event.tool}" if event.tool else event.type
    quoted = excerpt(event_text(event), text, _EXCERPT_WIDTH)
    return f"Event {event.seq}, {kind}, turn {event.turn}, {event.tokens:,} tokens" + (
        f': "{quoted}"' if quoted else ""
    )


def changes(history: Sequence[HistoryItem]) -> list[HistoryItem]:
    """Return the first call, and each call that showed the event otherwise than the one before it."""
    shown = [(item.disposition, item.summary, item.reducer, item.reason) for item in history]
    return [item for at, item in enumerate(history) if at == 0 or shown[at] != shown[at - 1]]


def describe_call(call: HistoryItem) -> str:
    """Return how a call showed the event, and why."""
    return describe_decision(call.disposition, call.reducer, call.reason, call.summary)


def describe_decision(disposition: str, reducer: str | None, reason: str | None, summary: str | None) -> str:
    """Return how an event is shown, and which rule decided that for which reason."""
    why = [part for part in (reducer, reason) if part]
    if summary and summary not in " ".join(why):
        why.append(f"summary {summary}")
    return _WORDS.get(disposition, disposition) + (f", by {': '.join(why)}" if why else "")


def story(history: Sequence[HistoryItem], numbers: Mapping[str, int], *, every: bool = False) -> list[str]:
    """Return lines on how the calls showed an event, by view: one for each change, or with `every` for each call.

    `numbers` are the numbers of calls by id.
    """
    if not history:
        return ["No recorded call has been made since."]
    lines: list[str] = []
    for view in sorted({item.view for item in history}):
        shown = [item for item in history if item.view == view]
        lines.append(f"View {view}, {counted(len(shown), 'call')}:")
        for item in shown if every else changes(shown):
            cause = f"epoch {item.epoch} ({item.cause})"
            lines.append(f"  {moment(item.created_at)}  {_named(item, numbers)}  {cause}: {describe_call(item)}")
        if not every:
            lines.append(f"  and so it was in the last call, {_named(shown[-1], numbers).removeprefix('call ')}")
    return lines


def _named(item: HistoryItem, numbers: Mapping[str, int]) -> str:
    """Return a call's number and id, or only the id of a call that was made after they were counted."""
    number = numbers.get(item.call_id)
    return f"call {item.call_id}" if number is None else f"call {number} {item.call_id}"
