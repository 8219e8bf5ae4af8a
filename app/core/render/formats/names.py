"""Tool names and call ids that providers accept; legal ones are never changed."""

import hashlib
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from types import MappingProxyType
from typing import Final, NamedTuple

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
NAME_CHARS_MAX: Final = 64
_ILLEGAL_DOTTED: Final = re.compile(r"[^a-zA-Z0-9_.:-]")
DOTTED_CHARS_MAX: Final = 128


def tool_name(name: str | None, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the name from `names`, else `name` made legal everywhere: at most 64 letters, digits, `_` and `-`."""
    if name is not None and name in names:
        return names[name]
    return _ILLEGAL.sub("_", name or "tool")[:NAME_CHARS_MAX]


def dotted_name(name: str | None, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the name from `names`, else `name` made legal for Gemini, which allows dots, colons and 128 characters,
    but no digit or dash at the start. A longer name is cut to NAME_CHARS_MAX, as for every provider."""
    if name is not None and name in names:
        return names[name]
    legal = _ILLEGAL_DOTTED.sub("_", name or "tool")
    legal = legal if legal[0].isalpha() or legal[0] == "_" else f"_{legal}"
    return legal if len(legal) <= DOTTED_CHARS_MAX else legal[:NAME_CHARS_MAX]


def with_hash(name: str, original: str) -> str:
    """Return `name` with a hash of the original name appended, at most 64 characters long."""
    return _marked(name, original, NAME_CHARS_MAX)


class Assigned(NamedTuple):
    """The number of ids assigned at some time, and those of them that wait for results."""

    used: int
    waiting: Mapping[str, tuple[str, ...]]


@dataclass(slots=True)
class CallIds:
    """The ids of one request's calls, assigned in order, so that appending never changes an earlier one.

    With `unique`, no id is assigned twice in a request. Otherwise the ids of finished calls may be used again, but no
    two calls that wait for their results have the same id.
    """

    chars_max: int
    unique: bool
    _used: dict[str, None] = field(default_factory=dict)
    _waiting: dict[str, deque[str]] = field(default_factory=dict)

    def call(self, call_id: str, seq: int, *, own: bool) -> str:
        """Assign the id of a new call. If `own`, the id is from this provider, so only its length can be wrong.

        An illegal id is cleaned and its hash appended; to a reused id its seq is appended.
        """
        legal = call_id
        if len(call_id) > self.chars_max or not call_id or (_ILLEGAL.search(call_id) and (self.unique or not own)):
            legal = _marked(_ILLEGAL.sub("_", call_id), call_id, self.chars_max)
        legal = self._unused(legal, seq)
        self._used[legal] = None
        self._waiting.setdefault(call_id, deque()).append(legal)
        return legal

    def result(self, call_id: str) -> str:
        """Return the id assigned to a result's call: the first with this `call_id` that waits for a result."""
        waiting = self._waiting.get(call_id)
        if not waiting:
            return call_id
        assigned = waiting.popleft()
        if not waiting:
            del self._waiting[call_id]
        if not self.unique:
            self._used.pop(assigned, None)
        return assigned

    def copy(self) -> "CallIds":
        """Return an independent copy."""
        waiting = {call_id: deque(ids) for call_id, ids in self._waiting.items()}
        return CallIds(self.chars_max, self.unique, self._used.copy(), waiting)

    def mark(self) -> "Assigned":
        """Return a mark for `restored`."""
        return Assigned(len(self._used), {call_id: tuple(ids) for call_id, ids in self._waiting.items()})

    def restored(self, mark: "Assigned") -> "CallIds":
        """Return a copy of the assignments as of one of its marks; only with `unique`, where no id is forgotten."""
        waiting = {call_id: deque(ids) for call_id, ids in mark.waiting.items()}
        whole = mark.used == len(self._used)
        used = self._used.copy() if whole else dict.fromkeys(islice(self._used, mark.used))
        return CallIds(self.chars_max, self.unique, used, waiting)

    def _unused(self, legal: str, seq: int) -> str:
        if legal not in self._used:
            return legal
        suffixes = (f"_{seq}_{number}" if number else f"_{seq}" for number in count())
        names = (legal[: self.chars_max - len(suffix)] + suffix for suffix in suffixes)
        return next(name for name in names if name not in self._used)


def _marked(name: str, original: str, chars_max: int) -> str:
    return f"{name[: chars_max - 13]}_{hashlib.sha256(original.encode()).hexdigest()[:12]}"
