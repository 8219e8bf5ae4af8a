"""A model's reply, in the form in which a client sends it back with its next request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from app.core.log.events import Json

Message = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a provider answered.

    `messages` are in the format of the request, empty if there is nothing to log. `usage` has the names that an outcome
    takes. `whole`: the reply came to its end. `id` is the provider's own, where a later request can name it. `error` is
    what the provider said went wrong in the middle of a stream.
    """

    messages: tuple[Message, ...] = ()
    usage: Mapping[str, int | None] | None = None
    whole: bool = False
    id: str | None = None
    error: Mapping[str, Json] | None = None


class Accumulator(Protocol):
    """Makes a reply of the objects of its stream, however far that came."""

    def feed(self, value: Mapping[str, Json]) -> None:
        """Take the next object."""

    def reply(self) -> Reply:
        """The reply as it stands."""


NOTHING: Final = Reply()


@dataclass(slots=True)
class GrowingText:
    """A text that grows by pieces."""

    pieces: list[str] = field(default_factory=list)

    def add(self, piece: Json) -> None:
        """Add a piece, if it is text."""
        if isinstance(piece, str):
            self.pieces.append(piece)

    def __str__(self) -> str:
        return "".join(self.pieces)


def mapping(value: Json) -> Mapping[str, Json]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def objects(value: Json) -> list[Mapping[str, Json]]:
    """The objects in the value if it is a list, else none."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def text_or_none(value: Json) -> str | None:
    """The value if it is text."""
    return value if isinstance(value, str) else None


def usage_of(**said: Json) -> Mapping[str, int | None] | None:
    """Usage as an outcome takes it, of what a provider says; None if it does not count the input."""
    counts = {name: _count(value) for name, value in said.items()}
    return None if counts["input_tokens"] is None else counts


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def error_of(value: Mapping[str, Json]) -> Mapping[str, Json]:
    """What a provider says of a failure, as a report of an outcome takes it."""
    inner = value.get("error")
    said = inner if isinstance(inner, Mapping) else value
    message, code = said.get("message"), said.get("code") or said.get("type")
    out: dict[str, Json] = {"message": message if isinstance(message, str) else inner if isinstance(inner, str) else ""}
    if isinstance(code, str):
        out["code"] = code
    return out
