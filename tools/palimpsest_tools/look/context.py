"""The command `context`: the window of a session's last call, and what the next one changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from palimpsest import AsyncPalimpsest, ContextInfeasibleError
from palimpsest.types import CallBlockOut, Change, Manifest, PreviewOut, TokensOut

from palimpsest_tools.look.calls import PAGE_MAX, NumberedCall, RecordedCalls, missing_call, outcome, read_calls
from palimpsest_tools.look.events import excerpt
from palimpsest_tools.look.rules import CallRules, cache_line, read_rules
from palimpsest_tools.look.story import describe_decision
from palimpsest_tools.look.window import Window, bar, legend, window_of
from palimpsest_tools.output import (
    Column,
    counted,
    duration,
    moment,
    output_width,
    print_json,
    print_lines,
    table,
    uses_colours,
)
from palimpsest_tools.server import Address, connected, run, stop

BLOCKS_MAX: Final = 10
"""Number of the largest blocks that are listed."""
CHANGES_MAX: Final = 5
"""Number of changes by the next call that are listed, those that save most."""
_TEXT_CHARS: Final = 400
_BAR_WIDTH_MAX: Final = 120
_TEXT_WIDTH_MIN: Final = 20


@dataclass(frozen=True, slots=True)
class AppendedSince:
    """The events that were appended after a call, up to a bound."""

    events: int
    tokens: int
    more: bool


@dataclass(frozen=True, slots=True)
class CallWindow:
    """A recorded call with its blocks. For a view's last call also the events since then, and a preview of the next.

    `reported` is the last call, up to this one, whose input the provider's count is known of.
    """

    one: NumberedCall
    record: Manifest
    blocks: tuple[CallBlockOut, ...]
    reported: NumberedCall | None
    rules: CallRules | None
    appended: AppendedSince | None = None
    preview: PreviewOut | None = None
    infeasible: str | None = None
    """The reason why no next context can be made."""

    @property
    def window(self) -> Window:
        """The window, with its threshold if the policy could be read."""
        return window_of(self.record.tokens, self.blocks, None if self.rules is None else self.rules.threshold)

    @property
    def cache_seconds(self) -> int | None:
        """The lifetime of the provider's cache, if the policy could be read."""
        return None if self.rules is None else self.rules.cache_seconds


def show_context(address: Address, session: str, view: str | None, call: str | None, *, as_json: bool) -> None:
    """Print the window of a view's last call, or of another call."""
    run(_show(address, session, view, call, as_json=as_json))


async def _show(address: Address, session: str, view: str | None, call: str | None, *, as_json: bool) -> None:
    async with connected(address) as client:
        recorded = await read_calls(client, session)
        one = recorded.find(call, view)
        if one is not None:
            found = await read_window(client, recorded, one, is_last=call is None)
        elif call is None and not recorded.views:
            print_preview(await client.session(session).preview_context(view=view), as_json=as_json)
            return
        else:
            stop(missing_call(recorded, session, call, view))
    if as_json:
        print_json(window_json(found))
    else:
        print_lines(describe(found, datetime.now(UTC), output_width(), colours=uses_colours()))


def print_preview(preview: PreviewOut, *, as_json: bool) -> None:
    """Print the window of a session's first call, which has not been made."""
    if as_json:
        print_json({"call": None, "tokens": preview.to_dict()["tokens"]})
    else:
        print_lines(describe_preview(preview, output_width(), colours=uses_colours()))


async def read_window(
    client: AsyncPalimpsest, recorded: RecordedCalls, one: NumberedCall, *, is_last: bool
) -> CallWindow:
    """Read a call and its blocks; for a view's last call also what follows it. Raises PalimpsestError."""
    session, id = client.session(one.call.line), one.call.call_id
    record = await session.get_call(id)
    blocks = [block async for block in session.list_call_blocks(id, text=_TEXT_CHARS, limit=PAGE_MAX)]
    reported, rules = last_reported(recorded, one), await read_rules(client, record)
    if not is_last:
        return CallWindow(one, record, tuple(blocks), reported, rules)
    page = await session.list_events(after=one.call.head, limit=PAGE_MAX)
    appended = AppendedSince(len(page.items), sum(event.tokens for event in page.items), page.next_cursor is not None)
    preview, infeasible = None, None
    try:
        preview = await session.preview_context(view=one.call.view, format=one.call.format, diff_with=id)
    except ContextInfeasibleError as error:
        infeasible = error.detail
    return CallWindow(one, record, tuple(blocks), reported, rules, appended, preview, infeasible)


def last_reported(recorded: RecordedCalls, one: NumberedCall) -> NumberedCall | None:
    """Return the last call of the same line and view, up to this one, with a provider's count of its input."""
    same = (one.call.line, one.call.view)
    calls = [other for other in recorded.calls if (other.call.line, other.call.view) == same]
    counts = [other for other in calls if other.number <= one.number and other.call.input_tokens is not None]
    return counts[-1] if counts else None


def describe(found: CallWindow, now: datetime, width: int, *, colours: bool) -> list[str]:
    """Return the lines of a call's window: the room that is left first, then the bar, its parts, and its blocks."""
    return [
        *_window_lines(found.window, _about(found, now), width, colours=colours),
        *counts(found.record.tokens, found.one, found.reported),
        "",
        *largest(found.blocks, width),
        *following(found, now),
    ]


def describe_preview(preview: PreviewOut, width: int, *, colours: bool) -> list[str]:
    """Return the lines of the window of a session's first call."""
    about = f"No call of {preview.line} is recorded; the next call would have this window:"
    return [
        *_window_lines(window_of(preview.tokens, ()), about, width, colours=colours),
        *counts(preview.tokens, None, None),
    ]


def _window_lines(window: Window, about: str, width: int, *, colours: bool) -> list[str]:
    drawn = bar(window, min(width, _BAR_WIDTH_MAX), colours=colours)
    return [room_left(window.left, window.bound), about, "", *drawn, "", *legend(window), ""]


def room_left(left: int, bound: int) -> str:
    """Return a line on the room before content must be left out."""
    if left < 0:
        return f"{-left:,} tokens over the {bound:,} above which content is left out"
    return f"{left:,} of {bound:,} tokens remain before content must be left out"


def _about(found: CallWindow, now: datetime) -> str:
    call = found.one.call
    made = f"made {moment(call.created_at)} ({duration(now - call.created_at)} ago)"
    model = f"model {call.model}" if call.model else "no model named"
    epoch = f"epoch {call.epoch} ({found.record.cause})"
    ended = outcome(call, {}) if call.outcome is not None and call.input_tokens is None else ""
    about = f"Call {found.one.number} of view {call.view} of {call.line}, {made}, {model}, {epoch}"
    return f"{about}, outcome: {ended}" if ended else about


def counts(tokens: TokensOut, one: NumberedCall | None, reported: NumberedCall | None) -> list[str]:
    """Return lines on the estimate of a call, and on the count that the provider last reported."""
    by, learned = tokens.estimator, tokens.calibration
    if learned is not None:
        by += f" times {learned.ratio:.2f}, as learned from {counted(learned.samples, 'report')}"
    lines = [f"Estimate: {tokens.estimate:,} tokens, by {by}"]
    if one is not None and reported is not None:
        which = "this call" if reported == one else f"call {reported.number}, estimated at {reported.call.estimate:,}"
        lines.append(f"Provider's count: {reported.call.input_tokens:,} input tokens for {which}")
    elif one is not None:
        lines.append("Provider's count: none was reported")
    if tokens.limit_assumed:
        lines.append(f"The window of {tokens.limit:,} is assumed: no model is named, or its window is not known")
    return lines


_BLOCK_COLUMNS: Final = (
    Column("TOKENS", figures=True),
    Column("EVENT", figures=True),
    Column("BLOCK"),
    Column("SHOWN"),
    Column("TEXT"),
)


def largest(blocks: Sequence[CallBlockOut], width: int) -> list[str]:
    """Return a table of the largest blocks of a request."""
    first = _largest_first(blocks)
    cells = [
        (
            f"{block.tokens:,}",
            f"{block.seq}" if block.from_seq == block.seq else f"{block.from_seq}-{block.seq}",
            f"{block.kind} {block.tool or block.name or ''}".strip(),
            block.mark,
        )
        for block in first
    ]
    headings = [tuple(column.heading for column in _BLOCK_COLUMNS[:-1]), *cells]
    taken = sum(max(map(len, column)) + 2 for column in zip(*headings, strict=True))
    room = max(_TEXT_WIDTH_MIN, width - taken)
    rows = [(*row, excerpt(block.text, None, room)) for row, block in zip(cells, first, strict=True)]
    title = f"The {len(rows)} largest of {len(blocks):,} blocks:" if len(rows) < len(blocks) else "All blocks:"
    return [title, *table(_BLOCK_COLUMNS, rows)]


def following(found: CallWindow, now: datetime) -> list[str]:
    """Return lines on what happened after a view's last call, and on what the next one leaves out."""
    since = found.appended
    if since is None:
        return []
    more = "more than " if since.more else ""
    words = f"{more}{counted(since.events, 'event')} with {since.tokens:,} tokens" if since.events else "no events"
    lines = [
        "",
        cache_line(found.one.call.created_at, found.cache_seconds, now),
        f"Appended since this call: {words}",
    ]
    if found.infeasible is not None:
        lines.append(f"Next call: no context can be made: {found.infeasible}")
    elif found.preview is not None:
        lines += _of_next(found.preview)
    return lines


def _of_next(preview: PreviewOut) -> list[str]:
    """Return lines on the next call: its size, and the events that it shows otherwise, with the rules."""
    epoch = "in the same epoch" if preview.cause is None else f"in a new epoch ({preview.cause})"
    size = f"Next call, as things are: {preview.tokens.estimate:,} of {preview.tokens.target:,} tokens, {epoch}"
    changes = [] if preview.diff is None else [one for one in preview.diff.changes if one.change != "added"]
    if not changes:
        return [f"{size}; nothing more is left out"]
    changes.sort(key=lambda change: (change.tokens, change.from_seq))
    lines = [f"{size}, and changes:"]
    lines += map(_change, changes[:CHANGES_MAX])
    if len(changes) > CHANGES_MAX:
        lines.append(f"  … {len(changes) - CHANGES_MAX:,} more")
    return lines


def _change(change: Change) -> str:
    one = change.from_seq == change.to_seq
    events = f"event {change.from_seq}" if one else f"events {change.from_seq} to {change.to_seq}"
    shown = describe_decision(change.to or "", change.reducer, change.reason, change.summary)
    return f"  {change.tokens:+,} tokens  {events}: {shown}"


def window_json(found: CallWindow) -> dict[str, Any]:
    """Return a call's window as one JSON object."""
    window, since, following = found.window, found.appended, found.preview
    return {
        "call": {"number": found.one.number, **found.one.call.to_dict()},
        "cause": found.record.cause,
        "left": window.left,
        "bound": window.bound,
        "cache_seconds": found.cache_seconds,
        "tokens": found.record.to_dict()["tokens"],
        "reported": found.reported and {"number": found.reported.number, **found.reported.call.to_dict()},
        "blocks": [block.to_dict() for block in _largest_first(found.blocks)],
        "appended": since and {"events": since.events, "tokens": since.tokens, "more": since.more},
        "next": following and {name: following.to_dict()[name] for name in ("tokens", "cause", "diff")},
        "infeasible": found.infeasible,
    }


def _largest_first(blocks: Sequence[CallBlockOut]) -> list[CallBlockOut]:
    return sorted(blocks, key=lambda block: (-block.tokens, block.index))[:BLOCKS_MAX]
