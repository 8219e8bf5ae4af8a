"""The body of a model call as text, whose members can be replaced without changing a byte of the others."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.log.events import Json

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()


class NoObject(ValueError):
    """The text is not a JSON object."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object: its name and value, its offset in the text, and the offsets of its value."""

    name: str
    value: Json
    begin: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object and its text."""

    text: str
    members: tuple[Member, ...]

    @property
    def value(self) -> dict[str, Json]:
        """The object; the last of several members with one name counts, as in JSON parsers."""
        return {member.name: member.value for member in self.members}

    def with_members(self, replaced: Mapping[str, str], *, without: frozenset[str] = frozenset()) -> str:
        """Return the text with some values replaced (by JSON) and some members removed; new members are appended."""
        pieces: list[str] = []
        for member in self.members:
            if member.name in without:
                continue
            text = replaced.get(member.name)
            value = self.text[member.start : member.end] if text is None else text
            pieces.append(self.text[member.begin : member.start] + value)
        known = {member.name for member in self.members}
        pieces += [f"{json.dumps(name)}:{text}" for name, text in replaced.items() if name not in known]
        return "{" + ",".join(pieces) + "}"

    def raw(self, name: str) -> str | None:
        """Return the text of a member's value; None if there is no such member."""
        return next((self.text[one.start : one.end] for one in reversed(self.members) if one.name == name), None)


def parse(raw: bytes) -> Body:
    """Find the members of a JSON object. Raises NoObject."""
    try:
        text = raw.decode("utf-8-sig")
        return Body(text, tuple(_members(text)))
    except (ValueError, RecursionError) as error:
        raise NoObject(str(error)) from None


def _members(text: str) -> Sequence[Member]:
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise NoObject("the body is no JSON object")
    found: list[Member] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        if found:
            at = _skip(text, _past(text, at, ","))
        begin = at
        if text[at : at + 1] != '"':
            raise NoObject(f"a name was expected at {at}")
        name, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _past(text, _skip(text, at), ":"))
        value, end = _DECODER.raw_decode(text, start)
        found.append(Member(name, value, begin, start, end))
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise NoObject(f"more text behind the object at {at + 1}")
    return found


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _past(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise NoObject(f"{sign!r} was expected at {at}")
    return at + 1
