"""The names of a session's lines. A session's name means its current line; `NAME@line.N` always means that line."""

import re
from typing import Final

from app.core.log.events import SESSION_ID_PATTERN

_LINE: Final = r"@line\.([1-9][0-9]{0,8})"
ADDRESS_PATTERN: Final = SESSION_ID_PATTERN.removesuffix("$") + rf"({_LINE.replace('(', '(?:', 1)})?$"
"""The pattern of an id in a path: a session's name, or the id of one of its lines."""
_ADDRESS: Final = re.compile(rf"(.+){_LINE}")


def line_id(name: str, number: int) -> str:
    """Return the id of a session's line; the first is number 1."""
    return f"{name}@line.{number}"


def is_line(address: str) -> bool:
    """Return whether an address is the id of a line. No session can be given such a name."""
    return "@line." in address and _ADDRESS.fullmatch(address) is not None


def session_of(address: str) -> str:
    """Return the session's name in an address."""
    found = _ADDRESS.fullmatch(address) if "@line." in address else None
    return address if found is None else found[1]


def line_of(row_name: str) -> str:
    """Return the id of the line stored in the row of this name: a session's row is that of its first line."""
    return row_name if is_line(row_name) else line_id(row_name, 1)


def row_name(address: str) -> str:
    """Return the name of the row that an address means, assuming that a session's name means its first line."""
    return address.removesuffix("@line.1")
