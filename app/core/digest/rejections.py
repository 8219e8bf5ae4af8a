"""Tool calls that a user did not allow. Harnesses answer them with a text that may hold the user's words."""

import re
from typing import Final

from app.core.log.event import Event

_REJECTED: Final = re.compile(
    r"\s{0,8}(?:The user doesn't want to (?:proceed with this tool use|take this action right now)\b"
    r"|The user denied this operation\b|The user rejected permission to use this specific tool call\b)"
)
"""The beginning of such a call's result in Claude Code, Cline and its forks, and opencode."""
_SAID: Final = re.compile(r"\bthe user said:\s{0,8}(.+)|<feedback>\s{0,8}(.+?)\s{0,8}</feedback>", re.S)


def is_rejected(result: Event | None) -> bool:
    """Return whether the user did not allow a result's call, which therefore had no effect."""
    if result is None:
        return False
    # The first line is known even if the event's body was not read, so that every plan judges alike.
    return _REJECTED.match(result.text if result.gist is None else result.gist) is not None


def words_of(rejection: str) -> str:
    """Return the user's words in the text of a rejection on one line; empty without any."""
    found = _SAID.search(rejection)
    return " ".join((found[1] or found[2]).split()) if found else ""
