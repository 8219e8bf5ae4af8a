"""Cursors: opaque to callers, a JSON value inside."""

import base64
import binascii
import json
from typing import Any

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
