"""Pages and cursors. A cursor is an encoded JSON value; each kind of position has a function that decodes it."""

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field, create_model

from app.core.errors import InvalidRequest
from app.core.lexicon.times import parse_time
from app.core.log.events import readable
from app.http.fields import NextCursor

CURSOR_CHARS_MAX: Final = 4096
"""Upper bound on the length of a cursor; no valid one is longer."""

Item = TypeVar("Item")


def encode(value: Any) -> str:
    """Return the cursor of a value; dates and ids become text."""
    return base64.urlsafe_b64encode(json.dumps(value, default=str).encode()).decode().rstrip("=")


def page_of(item: type[BaseModel], description: str, items: str) -> type[BaseModel]:
    """Return the schema of a page of a list, `CallPage` of `CallItem`; `items` describes the items and their order."""
    return create_model(
        re.sub("(Item|Out|Run)$", "Page", item.__name__),
        __doc__=description,
        __module__=item.__module__,
        items=(list[item], Field(description=items)),  # type: ignore[valid-type]  # made at run time
        next_cursor=NextCursor,
    )


def page(
    items: Sequence[Item], limit: int, position: Callable[[Item], Any], show: Callable[[Item], Any] | None = None
) -> Mapping[str, Any]:
    """Return a page of the first `limit` items, with a cursor if there are more: callers read `limit + 1` items.

    `position` returns an item's position in the list, after which the next page begins; `show` converts an item for the
    response.
    """
    shown = items[:limit]
    return page_to(map(show, shown) if show else shown, position(shown[-1]) if len(items) > limit else None)


def page_to(items: Iterable[Any], end: Any) -> Mapping[str, Any]:
    """Return a page after which the next begins at the position `end`; None for the last page."""
    return {"items": list(items), "next_cursor": None if end is None else encode(end)}


def decode_number(cursor: str | None, *, below: int) -> int | None:
    """Decode a position by number, at least 0 and less than `below`. Raises InvalidRequest."""
    value = _decoded(cursor)
    if value is None or (type(value) is int and 0 <= value < below):
        return value
    _refuse()


def decode_id(cursor: str | None) -> UUID | None:
    """Decode a position by id. Raises InvalidRequest."""
    value = _decoded(cursor)
    if value is None:
        return None
    try:
        return UUID(value)
    except (AttributeError, TypeError, ValueError):
        _refuse()


def decode_date_and_id(cursor: str | None) -> tuple[datetime, UUID] | None:
    """Decode a position by date and id. Raises InvalidRequest."""
    value = _decoded(cursor)
    if value is None:
        return None
    try:
        created_at, id = value
        return parse_time(created_at), UUID(id)
    except (AttributeError, TypeError, ValueError):
        _refuse()


def decode_names(cursor: str | None, parts: int) -> tuple[str, ...] | None:
    """Decode a position by `parts` names, which must be storable as text. Raises InvalidRequest."""
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
    """Return the value of a cursor; None without a cursor. Raises InvalidRequest."""
    if cursor is None:
        return None
    try:
        if len(cursor) > CURSOR_CHARS_MAX:
            _refuse()
        value = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (ValueError, RecursionError):
        _refuse()
    if value is None:  # no cursor encodes null
        _refuse()
    return value


def _refuse() -> NoReturn:
    raise InvalidRequest("the cursor is not valid for this list", field="cursor") from None
