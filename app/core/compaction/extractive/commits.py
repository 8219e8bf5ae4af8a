"""The agent's commits: their messages are its own words on its work and reasons."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.core.digest.files import command_of
from app.core.digest.outcomes import OK, state_of
from app.core.log.event import Event
from app.core.log.events import EventType

_MESSAGE: Final = re.compile(
    r"\bgit commit\b[^\n]{0,200}?-[a-z]{0,3}m[ =]?"
    r"(?:\"\$\(cat <<-?\s{0,4}['\"]?(\w{1,20})['\"]?\n(.{1,4000}?)\n\s{0,8}\1\b|\"([^\"]{1,2000})\"|'([^']{1,2000})')",
    re.S,
)
_UNDONE: Final = re.compile(r"\bgit reset (?:--\w{1,10} )?HEAD[~^]|\bgit commit\b[^\n]{0,200} --amend\b")
_TRAILER: Final = re.compile(r"^[A-Z][\w-]{1,40}: [^\n]*$", re.M)
_WRAPPED: Final = re.compile(r"(?<=\S)\n(?!\n|\s{0,8}(?:[-*•]|\d{1,2}[.)])\s)")
"""A line break within a paragraph."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit's seq, the first line of its message, and the rest without trailers."""

    seq: int
    subject: str
    body: str


def commits_of(events: Sequence[Event]) -> Sequence[Commit]:
    """Return the commits whose calls succeeded, oldest first, without those that a reset or an amendment replaced."""
    results = {e.call_seq: e for e in events if e.type is EventType.TOOL_RESULT and e.call_seq}
    found: list[Commit] = []
    for call in events:
        command = command_of(call.tool or "", call.arguments) if call.type is EventType.TOOL_CALL else None
        if not command or "git " not in command or state_of(results.get(call.seq), command) != OK:
            continue
        if _UNDONE.search(command):
            found = found[:-1]
        for message in _MESSAGE.finditer(command):
            subject, _, body = next(filter(None, message.groups()[1:])).strip().partition("\n")
            found.append(Commit(call.seq, subject.strip(), _WRAPPED.sub(" ", _TRAILER.sub("", body)).strip()))
    return found
