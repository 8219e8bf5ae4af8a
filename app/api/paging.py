"""Cursors: opaque to callers, a JSON value inside."""

import base64
import binascii
import json
from datetime import datetime
from typing import Any
from uuid import UUID

from app.core.errors import InvalidRequest


def encode(value: Any) -> str:
    """The cursor of a value."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def decode(cursor: str | None) -> Any:
    """The value of a cursor we gave out; None for none. Raises InvalidRequest for anything else."""
    if cursor is None:
        return None
    try:
        return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error):
        raise InvalidRequest("the cursor is none that was given out here", field="cursor") from None


def identified(cursor: str | None) -> UUID | None:
    """The place in a list by id. Raises InvalidRequest."""
    value = decode(cursor)
    if value is None:
        return None
    try:
        return UUID(value)
    except (AttributeError, TypeError, ValueError):
        raise InvalidRequest("the cursor is none that was given out here", field="cursor") from None


def dated(cursor: str | None) -> tuple[datetime, UUID] | None:
    """The place in a list by date and id. Raises InvalidRequest."""
    value = decode(cursor)
    if value is None:
        return None
    try:
        created_at, id = value
        return datetime.fromisoformat(created_at), UUID(id)
    except (TypeError, ValueError):
        raise InvalidRequest("the cursor is none that was given out here", field="cursor") from None
