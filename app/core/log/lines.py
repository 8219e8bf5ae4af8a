"""The names of a session's lines. A session's own name means one of them; `NAME@line.N` always means that one."""

import re
from typing import Final

from app.core.log.events import SESSION_ID_PATTERN

_LINE: Final = r"@line\.([1-9][0-9]{0,8})"
ADDRESS_PATTERN: Final = SESSION_ID_PATTERN.removesuffix("$") + rf"({_LINE.replace('(', '(?:', 1)})?$"
"""What a path may name: a session, or one of its lines."""
_ADDRESS: Final = re.compile(rf"(.+){_LINE}")


def line_id(name: str, number: int) -> str:
    """The id of a session's line; the first is number 1."""
    return f"{name}@line.{number}"


def is_line(address: str) -> bool:
    """Whether an address is that of one line. No session can be given such a name."""
    return "@line." in address and _ADDRESS.fullmatch(address) is not None


def session_of(address: str) -> str:
    """The session's name in an address."""
    found = _ADDRESS.fullmatch(address) if "@line." in address else None
    return address if found is None else found[1]


def line_of(row_name: str) -> str:
    """The id of the line whose row has this name: a session's row is that of its first line."""
    return row_name if is_line(row_name) else line_id(row_name, 1)


def row_name(address: str) -> str:
    """The name of the row that an address means, unless it is a session's name that means another line."""
    return address.removesuffix("@line.1")
