"""Tool names and call ids as providers accept them. A legal one is never changed."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
NAME_CHARS_MAX: Final = 64


def tool_name(name: str | None) -> str:
    """Letters, digits, `_` and `-`, at most 64: what every provider accepts."""
    return _ILLEGAL.sub("_", name or "tool")[:NAME_CHARS_MAX]


@dataclass(slots=True)
class CallIds:
    """The ids of one request's calls, given out in order, so that appending never changes an earlier one."""

    chars_max: int
    unique: bool
    _used: set[str] = field(default_factory=set)
    _current: dict[str, str] = field(default_factory=dict)

    def call(self, call_id: str, seq: int) -> str:
        """The id of a new call. A reused one gets its seq behind it where ids must be unique."""
        legal = call_id if not self.unique else _ILLEGAL.sub("_", call_id)
        if len(legal) > self.chars_max:
            legal = f"{legal[: self.chars_max - 13]}_{hashlib.sha256(call_id.encode()).hexdigest()[:12]}"
        if self.unique and legal in self._used:
            tail = f"_{seq}"
            legal = legal[: self.chars_max - len(tail)] + tail
        self._used.add(legal)
        self._current[call_id] = legal
        return legal

    def result(self, call_id: str) -> str:
        """The id of the call that a result answers."""
        return self._current.get(call_id, call_id)
