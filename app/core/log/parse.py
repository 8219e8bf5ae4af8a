"""Parse appended events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from app.core.errors import InvalidEvent, InvalidRequest
from app.core.log.events import (
    BOOKKEEPING,
    EVENTS_PER_BATCH_MAX,
    INPUT_FIELDS,
    NESTING_MAX,
    RULES,
    BrokenRule,
    Draft,
    EventType,
    Json,
    canonical_json,
    check_values,
    finite,
    too_deep,
)


def has_values(metadata: Json, wanted: Json, *, exact: bool) -> bool:
    """Return whether metadata has the wanted value; for an object, all of its named fields.

    A list must be equal if `exact`; otherwise it must contain all of the wanted items, in any order.
    """
    if isinstance(wanted, Mapping):
        return isinstance(metadata, Mapping) and all(
            name in metadata and has_values(metadata[name], value, exact=exact) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(metadata, list):
            return False
        if exact:
            return _equal(metadata, wanted)
        return all(any(has_values(one, value, exact=False) for one in metadata) for value in wanted)
    return _equal(metadata, wanted)


def check_names_values(metadata: Mapping[str, Json]) -> None:
    """Raise InvalidRequest unless a condition names a value: an undefined variable must not match everybody's sessions.

    The condition must hold neither an empty object nor an empty list, and at least one text, number, true or false.
    """
    if any(value in ({}, []) for value in _leaves(metadata)):
        raise InvalidRequest("metadata must hold neither an empty object nor an empty list", field="metadata")
    if all(value is None for value in _leaves(metadata)):
        raise InvalidRequest("metadata must name at least one value that is not null", field="metadata")


def _leaves(value: Json) -> Iterator[Json]:
    """Yield the scalars in a value, and its empty objects and lists."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    if not inner:
        yield value
    for one in inner:
        yield from _leaves(one)


def _equal(one: Json, other: Json) -> bool:
    """Return whether two values are the same JSON, with true and 1 distinct."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def parse_batch(raw: Json, *, native: bool = False) -> tuple[Draft, ...]:
    """Parse the events of one append, in order.

    `native` permits the field `native`, which the readers of provider messages set (`render/formats/rebuild` validates
    it if a client sends it). Raises InvalidRequest unless `raw` is a list of 1 to 1000 items, InvalidEvent for the
    first invalid event.
    """
    if not isinstance(raw, list) or not 1 <= len(raw) <= EVENTS_PER_BATCH_MAX:
        size = len(raw) if isinstance(raw, list) else "no list"
        raise InvalidRequest(f"events must be a list of 1 to {EVENTS_PER_BATCH_MAX}, got {size}", field="events")
    drafts = tuple(parse_event(event, index, native=native) for index, event in enumerate(raw))
    seen: set[str] = set()
    for index, draft in enumerate(drafts):
        if draft.id is not None and draft.id in seen:
            raise InvalidEvent(f"id {draft.id!r} is used twice in this batch", index=index, field="id")
        seen.add(draft.id or "")
    return drafts


def parse_event(raw: Json, index: int = 0, *, native: bool = False) -> Draft:
    """Parse one event. Raises InvalidEvent with the batch `index` and the `field` at fault."""
    if not isinstance(raw, Mapping):
        raise InvalidEvent("an event must be a JSON object", index=index, field="")
    known = INPUT_FIELDS if native else INPUT_FIELDS - {"native"}
    for name in raw:
        if name not in known:
            raise InvalidEvent(f"unknown field {name!r}", index=index, field=str(name))
    try:
        kind = EventType(str(raw.get("type")))
    except ValueError:
        known_types = ", ".join(EventType)
        raise InvalidEvent(
            f"unknown type {raw.get('type')!r}; known types: {known_types}", index=index, field="type"
        ) from None
    values = {name: value for name, value in raw.items() if name != "type" and value is not None}
    for name, value in values.items():
        try:
            RULES[name].check(value)
        except BrokenRule as broken:
            raise InvalidEvent(f"{name}: {broken}", index=index, field=name) from None
    draft = Draft(type=kind, **values)
    _check_together(draft, index)
    return draft


def body_text(draft: Draft, index: int) -> str:
    """Return the canonical JSON in which a draft is stored. Raises InvalidEvent for NaN and infinities."""
    try:
        return canonical_json(draft.body())
    except ValueError:
        raise InvalidEvent("a number is not finite", index=index, field="") from None


_NEEDS: Final[Mapping[EventType, tuple[str, ...]]] = {
    **dict.fromkeys(frozenset(EventType) - BOOKKEEPING, ("content",)),
    EventType.TOOL_CALL: ("call_id", "tool"),
    EventType.TOOL_RESULT: ("call_id",),
}
"""The fields that an event of each type must have."""


def _check_together(draft: Draft, index: int) -> None:
    for name in _NEEDS.get(draft.type, ()):
        native_empty = name == "content" and draft.native is not None
        if getattr(draft, name) is None and not native_empty:
            raise InvalidEvent(f"{draft.type} needs {name}", index=index, field=name)
    if draft.arguments is not None and draft.type is not EventType.TOOL_CALL:
        raise InvalidEvent("only a tool.call has arguments", index=index, field="arguments")
    if draft.type is EventType.TOOLS:
        try:
            if isinstance(draft.content, str):
                check_values(draft.content)
            deep = too_deep(tool_definitions(draft.content))
        except ValueError as error:
            raise InvalidEvent(f"content: {error}", index=index, field="content") from None
        if deep:
            raise InvalidEvent(f"content: is nested deeper than {NESTING_MAX} levels", index=index, field="content")


def tool_definitions(content: Json) -> Sequence[Mapping[str, Json]]:
    """Return the tool definitions of a `tools` event's content: a list, or its JSON text. Raises ValueError for others.

    Numbers that JSON lacks become text, so that the definitions can be written as JSON again.
    """
    if isinstance(content, str):
        try:
            content = json.loads(content, parse_constant=str, parse_float=finite)
        except RecursionError:
            raise ValueError(f"is nested deeper than {NESTING_MAX} levels") from None
    if not isinstance(content, list) or not all(isinstance(tool, Mapping) for tool in content):
        raise ValueError("tools must be a list of tool definitions, or its JSON text")
    return content
