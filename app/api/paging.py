"""Cursors: opaque to callers, a JSON value inside. Each kind of place is read by one function, which
refuses all else."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, TypeVar
from uuid import UUID

from app.api.schemas.common import in_utc
from app.core.errors import InvalidRequest
from app.core.log.events import readable

CURSOR_CHARS_MAX: Final = 4096
"""Longer than any that is given out."""

Item = TypeVar("Item")


def encode(value: Any) -> str:
    """The cursor of a value; dates and ids in it become text."""
    return base64.urlsafe_b64encode(json.dumps(value, default=str).encode()).decode().rstrip("=")


def page(items: Sequence[Item], limit: int, place: Callable[[Item], Any]) -> Mapping[str, Any]:
    """A page as it is answered. `place`: where in the list an item stands, for the cursor to go on from."""
    return {"items": items, "next_cursor": encode(place(items[-1])) if len(items) == limit else None}


def numbered(cursor: str | None, *, below: int) -> int | None:
    """The place in a list by number, from 0 to less than `below`. Raises InvalidRequest."""
    value = _decoded(cursor)
    if value is None or (type(value) is int and 0 <= value < below):
        return value
    _refuse()


def identified(cursor: str | None) -> UUID | None:
    """The place in a list by id. Raises InvalidRequest."""
    value = _decoded(cursor)
    if value is None:
        return None
    try:
        return UUID(value)
    except (AttributeError, TypeError, ValueError):
        _refuse()


def dated(cursor: str | None) -> tuple[datetime, UUID] | None:
    """The place in a list by date and id. Raises InvalidRequest."""
    value = _decoded(cursor)
    if value is None:
        return None
    try:
        created_at, id = value
        return in_utc(datetime.fromisoformat(created_at)), UUID(id)
    except (AttributeError, TypeError, ValueError):
        _refuse()


def named(cursor: str | None, parts: int) -> tuple[str, ...] | None:
    """The place in a list by one name or by several, which any database takes as text. Raises InvalidRequest."""
    value = _decoded(cursor)
    if value is None:
        return None
    names = [value] if parts == 1 else value
    if not isinstance(names, list) or len(names) != parts:
        _refuse()
    if not all(isinstance(name, str) and readable(name) == name for name in names):
        _refuse()
    return tuple(names)


def _decoded(cursor: str | None) -> Any:
    """The value of a cursor; None for none. Raises InvalidRequest."""
    if cursor is None:
        return None
    try:
        if len(cursor) > CURSOR_CHARS_MAX:
            _refuse()
        value = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (ValueError, RecursionError):
        _refuse()
    if value is None:  # never given out
        _refuse()
    return value


def _refuse() -> NoReturn:
    raise InvalidRequest("the cursor is none that was given out here", field="cursor") from None
