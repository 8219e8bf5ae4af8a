"""An event, or a text, at one call: whether the request held it, and which decisions had left it out."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from palimpsest import AsyncPalimpsest, AsyncSession, NotFoundError
from palimpsest.types import CallBlockOut, EventOut, HistoryItem, Manifest, SummaryWhole

from palimpsest_tools.look.calls import PAGE_MAX, NumberedCall
from palimpsest_tools.look.events import SEARCHED_MAX, excerpt, find_text, json_text, search
from palimpsest_tools.look.story import changes, describe_call, describe_event
from palimpsest_tools.output import counted, moment
from palimpsest_tools.server import stop

EVENTS_MAX: Final = 5
"""Number of events with a text that are explained: the last ones that the call did not show whole."""
_BLOCKS_MAX: Final = 5
_CHANGES_MAX: Final = 6
_TEXT_CHARS_MAX: Final = 100_000
"""Number of characters of each block that are searched, the most that a list of blocks has."""
_EXCERPT_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class EventAtCall:
    """An event up to one call: its history in the call's view, the last item being the call's."""

    event: EventOut
    history: tuple[HistoryItem, ...]
    summary: SummaryWhole | None = None
    """The summary that the call showed in its place."""
    block: CallBlockOut | None = None
    """The block of the request that shows it, or has other words for it."""


@dataclass(frozen=True, slots=True)
class CallStory:
    """A call, the text that was searched for in it, and the events of the log that have it, or one event."""

    call: NumberedCall
    record: Manifest
    text: str | None
    held_by: tuple[CallBlockOut, ...]
    """The blocks of the request with the text."""
    events: tuple[EventAtCall, ...]
    whole: tuple[int, ...] = ()
    """The seqs of all events with the text that the call showed whole."""
    partial: tuple[int, ...] = ()
    """The seqs of all events with the text that it left out, or showed otherwise."""
    later: tuple[int, ...] = ()
    """The seqs of events with the text that were appended after the call, if no earlier one has it."""
    searched_from: int = 1


async def read_event_story(client: AsyncPalimpsest, one: NumberedCall, seq: int) -> CallStory:
    """Read all that explains an event at a call; stop with a line if it was appended later. Raises PalimpsestError."""
    session = client.session(one.call.line)
    event = await session.get_event(seq)
    if seq > one.call.head:
        stop(f"event {seq} was appended after call {one.number}, whose context ends at event {one.call.head}")
    record, blocks = await _read_call(session, one)
    return CallStory(one, record, None, (), (await _read_event(session, event, one, blocks),))


async def read_text_story(client: AsyncPalimpsest, one: NumberedCall, text: str) -> CallStory:
    """Read all that explains a text at a call. Raises PalimpsestError."""
    session, head = client.session(one.call.line), one.call.head
    record, blocks = await _read_call(session, one)
    start = max(0, head - SEARCHED_MAX)
    found = (await search(session, text, after=start, last=head)).events
    shown = {event.seq: is_whole(record, event.seq) for event in found}
    # The events that were left out are what was forgotten; those that were shown explain nothing.
    explained = [event for event in found if not shown[event.seq]] or found
    later = () if found else (await search(session, text, after=head, last=head + SEARCHED_MAX)).events
    return CallStory(
        call=one,
        record=record,
        text=text,
        held_by=tuple(block for block in blocks if find_text(block_text(block), text)),
        events=tuple([await _read_event(session, event, one, blocks) for event in explained[-EVENTS_MAX:]]),
        whole=tuple(seq for seq, whole in shown.items() if whole),
        partial=tuple(seq for seq, whole in shown.items() if not whole),
        later=tuple(event.seq for event in later),
        searched_from=start + 1,
    )


def block_text(block: CallBlockOut) -> str:
    """Return the text of a block as that of its event reads: a call's arguments without the escapes of JSON."""
    return json_text(block.text) if block.kind in ("call", "tools") else block.text


def is_whole(record: Manifest, seq: int) -> bool:
    """Return whether a call showed an event verbatim."""
    runs = record.dispositions
    return any(run.from_seq <= seq <= run.to_seq and run.disposition == "verbatim" for run in runs)


async def _read_call(session: AsyncSession, one: NumberedCall) -> tuple[Manifest, list[CallBlockOut]]:
    id = one.call.call_id
    blocks = [block async for block in session.list_call_blocks(id, text=_TEXT_CHARS_MAX, limit=PAGE_MAX)]
    return await session.get_call(id), blocks


async def _read_event(
    session: AsyncSession, event: EventOut, one: NumberedCall, blocks: Sequence[CallBlockOut]
) -> EventAtCall:
    history = []
    async for item in session.get_event_history(event.seq, view=one.call.view, limit=PAGE_MAX):
        history.append(item)
        if item.call_id == one.call.call_id:
            break
    summary = None
    if history[-1].summary is not None:
        with suppress(NotFoundError):
            summary = await session.get_summary(history[-1].summary)
    block = next((block for block in blocks if block.seq == event.seq and block.mark not in _OF_SEVERAL), None)
    return EventAtCall(event, tuple(history), summary, block)


_OF_SEVERAL: Final = frozenset({"summary", "note", "layer", "notice", "injected", "pending"})
"""The marks of blocks that show more than one event, or none."""


def describe_story(story: CallStory, numbers: Mapping[str, int]) -> list[str]:
    """Return the lines that answer whether and why the call's request did not hold the text or the event."""
    call, tokens = story.call.call, story.record.tokens
    lines = [
        f"Call {story.call.number} of view {call.view}, {moment(call.created_at)}, epoch {call.epoch}"
        f" ({story.record.cause}): {tokens.estimate:,} of {tokens.target:,} tokens"
    ]
    if story.text is not None:
        lines += _verdict(story, story.text)
    for one in story.events:
        lines += ["", *_of_event(one, story, numbers)]
    return lines


def _verdict(story: CallStory, text: str) -> list[str]:
    """Return lines on whether the request held the text, and how many events of the log have it."""
    if story.held_by:
        places = [_place(block) for block in story.held_by[:_BLOCKS_MAX]]
        if more := len(story.held_by) - len(places):
            places.append(f"in {counted(more, 'block')} more")
        lines = [f'Its request held "{text}": {", ".join(places)}.']
    else:
        lines = [f'Its request did not hold "{text}".']
    head = story.call.call.head
    searched = (
        f"events {story.searched_from:,} to {head:,}" if story.searched_from > 1 else f"the {head:,} events before it"
    )
    lines.append(_counts(story, searched))
    if story.later:
        lines.append(f"Event {story.later[0]}, the first that has it, was appended after this call.")
    return lines


def _counts(story: CallStory, searched: str) -> str:
    """Return a line on how many events have the text, and how many of them the request showed whole."""
    whole, partial = len(story.whole), len(story.partial)
    found, explained = whole + partial, len(story.events)
    if not found:
        return f"None of {searched} has it."
    shown = (
        "shown whole" if not partial else "not shown whole" if not whole else f"{whole:,} shown whole, {partial:,} not"
    )
    more = explained < (partial or whole)
    last = f"; the last {explained} {'of these' if not (whole and partial) else 'that are not'}" if more else ""
    return f"Of {searched}, {found:,} {'has' if found == 1 else 'have'} it, {shown}{last}:"


def _place(block: CallBlockOut) -> str:
    """Return where in a request a block is, in a few words."""
    if block.mark == "summary":
        return "in its summaries"
    if block.mark in ("layer", "injected"):
        return f"in the {'layer' if block.mark == 'layer' else 'injected content'} {block.name!r}"
    if block.mark in ("note", "notice"):
        return "in the note on what was left out"
    return f"in event {block.seq} ({block.kind}{'' if block.mark == 'verbatim' else f', {block.mark}'})"


def _of_event(one: EventAtCall, story: CallStory, numbers: Mapping[str, int]) -> list[str]:
    """Return lines on an event: the changes of how calls showed it, and what the call has in its place."""
    changed = [_changed(item, numbers) for item in changes(one.history)]
    if skipped := max(0, len(changed) - _CHANGES_MAX):
        whole = f"palimpsest explain {story.call.call.line} {one.event.seq}"
        changed[2 : 2 + skipped] = [f"  … {counted(skipped, 'change')} more: {whole}"]
    lines = [describe_event(one.event, story.text), *changed]
    if one.summary is not None:
        return [*lines, _of_summary(one.summary, story.text)]
    if one.block is not None and one.block.mark != "verbatim":
        lines.append(f'  In its place: "{excerpt(one.block.text, None, _EXCERPT_WIDTH)}"')
    return lines


def _changed(item: HistoryItem, numbers: Mapping[str, int]) -> str:
    call = f"call {numbers.get(item.call_id, item.call_id)}"
    return f"  {moment(item.created_at)}  from {call} on, epoch {item.epoch} ({item.cause}): {describe_call(item)}"


def _of_summary(summary: SummaryWhole, text: str | None) -> str:
    """Return a line on a summary that a call shows for an event, with its text where `text` occurs in it."""
    about = f"Summary {summary.id} of events {summary.from_seq} to {summary.to_seq}, {summary.tokens:,} tokens"
    if text is None:
        return f'  {about}: "{excerpt(summary.text, None, _EXCERPT_WIDTH)}"'
    has = find_text(summary.text, text) is not None
    words = "has the text" if has else "does not have the text; it begins"
    return f'  {about}, {words}: "{excerpt(summary.text, text, _EXCERPT_WIDTH)}"'


def story_json(story: CallStory) -> dict[str, Any]:
    """Return the story as one JSON object."""
    return {
        "call": {"number": story.call.number, **story.call.call.to_dict()},
        "cause": story.record.cause,
        "text": story.text,
        "held": bool(story.held_by) if story.text is not None else None,
        "held_by": [block.to_dict() for block in story.held_by],
        "events": [
            {
                "event": one.event.to_dict(),
                "history": [item.to_dict() for item in one.history],
                "block": one.block and one.block.to_dict(),
                "summary": one.summary and one.summary.to_dict(),
                "summary_has_text": bool(find_text(one.summary.text, story.text))
                if one.summary and story.text
                else None,
            }
            for one in story.events
        ],
        "whole_events": list(story.whole),
        "partial_events": list(story.partial),
        "later_events": list(story.later),
    }
