"""Pairing of the tool calls and results in a client's complete list.

A log holds one open call per id, and no result without its call. A client's list may break both: an id used again
before its result, a repeated result, a list that starts after a call but before its result. Calls without ids, as
Gemini has them, get ids that are distinct in the list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import Final

from app.core.log.events import ID_CHARS_MAX, Draft, EventType, Json
from app.core.log.placement import OpenCall

UNKNOWN_TOOL: Final = "unknown_tool"
UNKNOWN_ARGUMENTS: Final = MappingProxyType(
    {"note": "This call is not in the conversation; its arguments are not known."}
)
"""The tool and arguments of the call that is inserted before a result without a call."""
ADDED: Final = "palimpsest_added"
"""The metadata of an inserted call."""
_SUFFIX_CHARS_MAX: Final = 12
_NEWER: Final = 2**63
"""A seq after those of all logged calls."""

_Event = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class OpenIds:
    """The state of a pairing between two parts of a list.

    `waiting` maps each id in the list to the logged ids of its open calls, oldest first; `unnamed` counts, by tool, the
    calls that came without an id.
    """

    waiting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unnamed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PairedEvents:
    """Events that a log accepts.

    `sources` holds, for each event, the position of the event that it was made from. `added` are the positions of
    inserted calls. `open_ids` continues the pairing with later events.
    """

    events: Sequence[_Event]
    sources: Sequence[int]
    added: frozenset[int]
    open_ids: OpenIds


def pair_calls(events: Sequence[_Event], open_ids: OpenIds | None = None) -> PairedEvents:
    """Give each open call a unique id, and insert a call before each result without one.

    Results answer the calls of their id in order. An event whose id changes keeps the client's id in `native.call_id`.
    An event's outcome does not depend on later events, so a growing list keeps its outcomes.
    """
    ids = _Ids(open_ids or OpenIds())
    found: list[_Event] = []
    sources: list[int] = []
    added: set[int] = set()
    for source, event in enumerate(events):
        given, logged = event.get("call_id"), None
        if event["type"] == EventType.TOOL_CALL and isinstance(given, str):
            logged = ids.open_call(given, unnamed=_came_without_id(event))
        elif event["type"] == EventType.TOOL_RESULT and isinstance(given, str):
            logged = ids.answer_call(given)
            if logged is None:
                logged = ids.unused_id(given, unnamed=_came_without_id(event))
                added.add(len(found))
                found.append(_unknown_call(logged))
                sources.append(source)
                event = _without_call_fields(event)
        found.append(event if logged in (None, given) else _rename(event, str(logged)))
        sources.append(source)
    return PairedEvents(found, sources, frozenset(added), ids.state())


def name_unnamed(drafts: Sequence[Draft], open_calls: Mapping[str, OpenCall]) -> Sequence[Draft]:
    """Assign results without an id to the oldest open call of their tool, whose id may be made up.

    Returns the same drafts if nothing changes.
    """
    left = dict(open_calls)
    named: list[Draft] = []
    for draft in drafts:
        given = draft.call_id or ""
        if draft.type is EventType.TOOL_RESULT and given not in left and _came_without_id({"native": draft.native}):
            tool = given.rpartition("#")[0]
            oldest = min(((call.seq, call_id) for call_id, call in left.items() if call.tool == tool), default=None)
            if oldest is not None:
                draft = replace(draft, call_id=oldest[1], native={**(draft.native or {}), "call_id": given})
        if draft.type is EventType.TOOL_CALL:
            left[given] = OpenCall(_NEWER, draft.tool or "")
        else:
            left.pop(draft.call_id or "", None)
        named.append(draft)
    return drafts if all(new is old for new, old in zip(named, drafts, strict=True)) else named


class _Ids:
    """The ids of open calls while a list is read."""

    def __init__(self, begun: OpenIds) -> None:
        self._waiting = {given: list(logged) for given, logged in begun.waiting.items()}
        self._taken = {logged for ids in self._waiting.values() for logged in ids}
        self._unnamed = dict(begun.unnamed)

    def open_call(self, given: str, *, unnamed: bool) -> str:
        """Return the id to log a call by, and keep it until the call's result."""
        logged = self.unused_id(given, unnamed=unnamed)
        self._taken.add(logged)
        self._waiting.setdefault(given, []).append(logged)
        return logged

    def answer_call(self, given: str) -> str | None:
        """Return the logged id of the oldest open call with this id, and close the call; None if there is none."""
        ids = self._waiting.get(given)
        if not ids:
            return None
        logged = ids.pop(0)
        self._taken.remove(logged)
        if not ids:
            del self._waiting[given]
        return logged

    def unused_id(self, given: str, *, unnamed: bool) -> str:
        """Return an id that no open call has: the given one if possible."""
        if unnamed:
            tool = given.rpartition("#")[0]
            numbers = count(self._unnamed.get(tool, 0) + 1)
            number = next(one for one in numbers if f"{tool}#{one}" not in self._taken)
            self._unnamed[tool] = number
            return f"{tool}#{number}"
        if given not in self._taken:
            return given
        names = (f"{given[: ID_CHARS_MAX - _SUFFIX_CHARS_MAX]}#{number}" for number in count(2))
        return next(name for name in names if name not in self._taken)

    def state(self) -> OpenIds:
        """Return the state from which a later pairing continues."""
        return OpenIds({given: tuple(ids) for given, ids in self._waiting.items()}, self._unnamed)


def _came_without_id(event: _Event) -> bool:
    """Return whether the reader of the message made the id, since the message has none."""
    part = (event.get("native") or {}).get("part") or {}
    return part.get("no_id") is True


def _unknown_call(call_id: str) -> _Event:
    return {
        "type": "tool.call",
        "call_id": call_id,
        "tool": UNKNOWN_TOOL,
        "arguments": dict(UNKNOWN_ARGUMENTS),
        "metadata": {ADDED: True},
    }


def _without_call_fields(event: _Event) -> _Event:
    """Return the result without the native fields that apply only to its provider's own kind of call."""
    part = (event.get("native") or {}).get("part") or {}
    if "type" not in (part.get("item") or {}):
        return event
    return {name: value for name, value in event.items() if name != "native"}


def _rename(event: _Event, call_id: str) -> _Event:
    native = {**(event.get("native") or {}), "call_id": event["call_id"]}
    return {**event, "call_id": call_id, "native": native}
