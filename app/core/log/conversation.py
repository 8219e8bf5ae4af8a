"""A client's conversation: the hash chain that finds its messages in the log, and the pairing of its calls and results.

The chain is over events, not messages, so it does not depend on the messages' format or grouping. An event's hash
covers the whole conversation up to and including it.

A log holds one open call per id, and no result without its call. A client's list may break both: an id used again
before its result, a repeated result, a list that starts after a call but before its result. Calls without ids, as
Gemini has them, get ids that are distinct in the list.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import Final

from app.core.log.appends import OpenCall
from app.core.log.event import REASONING_PARTS, TEXT_PARTS
from app.core.log.events import DIALOGUE, ID_CHARS_MAX, TOOL_USE, Draft, EventType, Json, arguments_object

CHAINED: Final = DIALOGUE | {*TOOL_USE, EventType.SYSTEM_MESSAGE}
"""The types of events that clients send back with every request."""
HASH_BYTES: Final = 16
START: Final = bytes(HASH_BYTES)
"""The hash of an empty conversation."""
_SDK_ONLY: Final = frozenset({"cache_control", "annotations", "parsed", "parsed_output", "status", "index", "logprobs"})
_ANSWER_FIELDS: Final = ("audio", "function_call")
"""Fields of an assistant's chat message that may hold an answer in addition to `content`."""
_text: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Tip:
    """The end of a log's chain: its last chained event `seq`, the `number` of events in the conversation up to there,
    and the `hash` of the last of them."""

    seq: int = 0
    number: int = 0
    hash: bytes = START


@dataclass(frozen=True, slots=True)
class Link:
    """An event of a conversation: its index in the given events, and the hash of the conversation up to it."""

    place: int
    hash: bytes


def links(bodies: Iterable[Mapping[str, Json]], start: bytes = START) -> list[Link]:
    """Return the links of events, stored or new, that continue a conversation with the hash `start`."""
    found: list[Link] = []
    for place, body in enumerate(bodies):
        text = canonical(body)
        if text is not None:
            start = hashlib.blake2b(start + text, digest_size=HASH_BYTES).digest()
            found.append(Link(place, start))
    return found


def count_repeated(before: Sequence[Mapping[str, Json]], after: Sequence[Mapping[str, Json]]) -> int:
    """Return the number of events at the beginning of `after` that repeat the last ones of `before`."""
    last = [text for body in before if (text := canonical(body)) is not None]
    first = [(place, text) for place, body in enumerate(after, 1) if (text := canonical(body)) is not None]
    for size in range(min(len(last), len(first)), 0, -1):
        if last[-size:] == [text for _, text in first[:size]]:
            return first[size - 1][0]
    return 0


def canonical(body: Mapping[str, Json]) -> bytes | None:
    """Return the content of an event in a form that equivalent spellings share; None if it is not in the conversation.

    Reasoning is left out, since clients may drop it and cannot change it; a message of nothing else is not part of the
    conversation. Fields that only SDKs or caches read are left out, too.
    """
    form = pieces(body)
    return None if form is None else _join(form)


def pieces(body: Mapping[str, Json]) -> list[str] | None:
    """Return the parts of an event's canonical form: its type and call id, then tool and arguments or content."""
    kind = body["type"]
    if kind not in CHAINED:
        return None
    own = body.get("native") or {}
    call_id = own.get("call_id") or body.get("call_id") or ""  # the client's id, if the log gave the call another one
    if kind == EventType.TOOL_CALL:
        return [str(kind), call_id, body.get("tool") or "", _text(arguments_object(body.get("arguments")))]
    head = own.get("head") or {}
    content = body.get("content")
    refusal = head.get("refusal") if content is None else None
    parts = _parts(refusal if isinstance(refusal, str) else content)
    extra = {name: head[name] for name in _ANSWER_FIELDS if head.get(name)} if head else {}
    if isinstance(extra.get("audio"), Mapping):
        extra["audio"] = extra["audio"].get("id")
    if kind == EventType.ASSISTANT_MESSAGE and not parts and not extra:
        return None
    flag = "error" if body.get("is_error") else _text(extra) if extra else ""
    return [str(kind), call_id, flag, *parts]


def canonical_prompt(content: Json) -> bytes:
    """Return the canonical form of a system prompt, which equivalent spellings share."""
    return _join(_parts(content))


def canonical_tool_list(definitions: Iterable[Json]) -> bytes:
    """Return the canonical form of tool definitions, which equivalent spellings share."""
    return _text([_clean(definition) for definition in definitions]).encode("utf-8", "surrogatepass")


def _join(texts: Sequence[str]) -> bytes:
    """Join texts, each with its length, so that the result is unambiguous."""
    return "".join([f"{len(text)}:{text}" for text in texts]).encode("utf-8", "surrogatepass")


def _parts(content: Json) -> list[str]:
    """Return the parts of content as texts; parts that are not text become JSON after a NUL. Blank text is left out."""
    if isinstance(content, str):
        return [form] if (form := _plain(content)) else []
    return [] if content is None else [form for part in content if (form := _part(part))]


def _part(part: Json) -> str:
    if not isinstance(part, Mapping):
        return f"\0{_text(part)}"
    kind = str(part.get("type"))
    if kind in REASONING_PARTS:
        return ""
    text = part.get("refusal") if kind == "refusal" else part.get("text") if kind in TEXT_PARTS else None
    if isinstance(text, str):
        return _plain(text)
    kept = {name: _clean(child) for name, child in part.items() if child is not None and name not in _SDK_ONLY}
    return f"\0{_text(kept)}"


def _plain(text: str) -> str:
    """Return the text with its leading NUL doubled, so that it cannot be taken for JSON after a NUL; empty if blank."""
    return "" if not text.strip() else f"\0{text}" if text[0] == "\0" else text


def _clean(value: Json) -> Json:
    """Return a value without nulls and cache markers."""
    if isinstance(value, Mapping):
        kept = ((name, child) for name, child in value.items() if child is not None and name != "cache_control")
        return {name: _clean(child) for name, child in kept}
    return [_clean(child) for child in value] if isinstance(value, list) else value


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


@dataclass(slots=True)
class OpenIds:
    """The open calls of a list, as far as it was read.

    `waiting` maps each id in the list to the logged ids of its open calls, oldest first; `taken` are all of these.
    `unnamed` counts, by tool, the calls that came without an id.
    """

    waiting: dict[str, list[str]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    unnamed: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "OpenIds":
        """Return an independent copy."""
        waiting = {given: logged.copy() for given, logged in self.waiting.items()}
        return OpenIds(waiting, self.taken.copy(), self.unnamed.copy())

    def open_call(self, given: str, *, unnamed: bool) -> str:
        """Return the id to log a call by, and keep it until the call's result."""
        logged = self.unused_id(given, unnamed=unnamed)
        self.taken.add(logged)
        self.waiting.setdefault(given, []).append(logged)
        return logged

    def answer_call(self, given: str) -> str | None:
        """Return the logged id of the oldest open call with this id, and close the call; None if there is none."""
        ids = self.waiting.get(given)
        if not ids:
            return None
        logged = ids.pop(0)
        self.taken.remove(logged)
        if not ids:
            del self.waiting[given]
        return logged

    def unused_id(self, given: str, *, unnamed: bool) -> str:
        """Return an id that no open call has: the given one if possible."""
        if unnamed:
            tool = given.rpartition("#")[0]
            numbers = count(self.unnamed.get(tool, 0) + 1)
            number = next(one for one in numbers if f"{tool}#{one}" not in self.taken)
            self.unnamed[tool] = number
            return f"{tool}#{number}"
        if given not in self.taken:
            return given
        names = (f"{given[: ID_CHARS_MAX - _SUFFIX_CHARS_MAX]}#{number}" for number in count(2))
        return next(name for name in names if name not in self.taken)


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
    ids = OpenIds() if open_ids is None else open_ids.copy()
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
    return PairedEvents(found, sources, frozenset(added), ids)


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
