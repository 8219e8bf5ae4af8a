"""Rows as values: dataclasses of columns, the core's events, and events as they were appended."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

from app.core.log.event import ERASED_TOKENS, Event, event_time
from app.core.log.events import EventType, Json
from app.store import texts

Row = asyncpg.Record | Mapping[str, Any]
"""A row from the driver, or one combined from several."""

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")


@cache  # grows by one entry for each class
def _names(kind: type["DataclassInstance"]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def columns(kind: type["DataclassInstance"]) -> str:
    """Return the column list for a dataclass."""
    return ", ".join(_names(kind))


def parameters(value: "DataclassInstance", *omitted: str) -> dict[str, Any]:
    """Return a value's fields by name, for a statement with one parameter per field that is not `omitted`."""
    return {name: getattr(value, name) for name in _names(type(value)) if name not in omitted}


def decode(kind: type[Value], row: Row, **others: Any) -> Value:
    """Decode a row, which may have further columns; `others` are fields that are not columns.

    Lists become tuples, and a field `policy` is read from the two columns that hold a policy's name and version.
    """
    for name in _names(kind):
        if name not in others:
            value = (row["policy_name"], row["policy_version"]) if name == "policy" else row[name]
            others[name] = tuple(value) if isinstance(value, list) else value
    return kind(**others)


LEGIBLE_IN_BODY: Final = ("turn_id", "path")
"""Members of a body that statements read; they stay legible when bodies are sealed."""
EVENT_COLUMNS: Final = (
    "seq, type, turn, tokens, cum_tokens, call_id, tool, call_seq, author, pinned, is_error, gist,"
    " extract(epoch FROM created_at)::float8, body"
)
WITHOUT_BODIES: Final = EVENT_COLUMNS.removesuffix("body") + "NULL AS body"
WITH_SOME_BODIES: Final = (
    EVENT_COLUMNS.removesuffix("body") + "CASE WHEN seq = ANY(:bodiless::bigint[]) THEN NULL ELSE body END"
)
_TYPES: Final = {kind.value: kind for kind in EventType}


def event(record: Sequence[Any]) -> Event:
    """Decode a row of EVENT_COLUMNS."""
    seq, kind, turn, tokens, cum, call_id, tool, call_seq, author, pinned, is_error, gist, stored_at, text = record
    plain = "" if text is None else texts.unsealed(text)
    body = None if text is None else texts.loads(plain)
    gist = None if gist is None else texts.open_text(gist)
    if body is not None and body.get("redacted") is True:  # its row has the tokens of the original
        tokens = ERASED_TOKENS if tokens else 0
    kind, at, chars = _TYPES[kind], event_time(body, stored_at), len(plain)
    return Event(seq, kind, turn, tokens, cum, call_id, tool, call_seq, author, pinned, is_error, gist, at, body, chars)


OFF_LOOP_RECORDS: Final = 200
"""Decoding more records than this would delay other requests by more than a few milliseconds."""


async def decode_events(records: Sequence[Any]) -> tuple[Event, ...]:
    """Decode rows of EVENT_COLUMNS, off the event loop if they are many."""

    def decode() -> tuple[Event, ...]:
        return tuple(map(event, records))

    return await asyncio.to_thread(decode) if len(records) > OFF_LOOP_RECORDS else decode()


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it was appended."""

    seq: int
    event_id: str | None
    turn: int
    tokens: int
    body: str
    created_at: datetime

    @property
    def value(self) -> Mapping[str, Json]:
        """The parsed body."""
        parsed: Mapping[str, Json] = json.loads(self.body)
        return parsed


STORED_COLUMNS: Final = "seq, event_id, turn, tokens, body, created_at"


def stored_event(record: Sequence[Any]) -> StoredEvent:
    """Decode a row of STORED_COLUMNS."""
    seq, event_id, turn, tokens, body, created_at = record
    return StoredEvent(seq, event_id, turn, tokens, texts.restore(body), created_at)
