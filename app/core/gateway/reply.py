"""A model's reply, in the form in which a client sends it back with its next request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from app.core.log.events import Json

Message = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Reply:
    """A provider's reply.

    `messages` are in the format of the request, empty if there is nothing to log. `usage` has the names of a reported
    outcome. `complete`: the reply is complete. `id` is the provider's own if a later request can name it. `error` is
    the error that the provider reported in the middle of a stream.
    """

    messages: tuple[Message, ...] = ()
    usage: Mapping[str, int | None] | None = None
    complete: bool = False
    id: str | None = None
    error: Mapping[str, Json] | None = None


class Accumulator(Protocol):
    """Builds a reply from the objects of its stream, however many of them arrive."""

    def feed(self, value: Mapping[str, Json]) -> None:
        """Add the next object."""

    def reply(self) -> Reply:
        """Return the reply as received so far."""


NOTHING: Final = Reply()


@dataclass(slots=True)
class GrowingText:
    """A text that grows by pieces."""

    pieces: list[str] = field(default_factory=list)

    def add(self, piece: Json) -> None:
        """Add a piece; anything but a string is ignored."""
        if isinstance(piece, str):
            self.pieces.append(piece)

    def __str__(self) -> str:
        return "".join(self.pieces)


def mapping(value: Json) -> Mapping[str, Json]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def objects(value: Json) -> list[Mapping[str, Json]]:
    """Return the objects in a list; none for any other value."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def text_or_none(value: Json) -> str | None:
    """Return the value if it is a string, else None."""
    return value if isinstance(value, str) else None


def usage_of(**reported: Json) -> Mapping[str, int | None] | None:
    """Return a provider's usage as an outcome reports it; None if the input was not counted."""
    counts = {name: _count(value) for name, value in reported.items()}
    return None if counts["input_tokens"] is None else counts


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def error_of(value: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return a provider's error as an outcome reports it."""
    inner = value.get("error")
    error = inner if isinstance(inner, Mapping) else value
    message, code = error.get("message"), error.get("code") or error.get("type")
    out: dict[str, Json] = {"message": message if isinstance(message, str) else inner if isinstance(inner, str) else ""}
    if isinstance(code, str):
        out["code"] = code
    return out
