"""Stored events, and blocks: the neutral form in which formats receive them."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Generic, Self, TypeVar, overload

from app.core import dataclass, field
from app.core.lexicon.identifiers import ADDRESSES, FILES, identifiers
from app.core.lexicon.times import parse_time, to_seconds
from app.core.log.events import (
    BOOKKEEPING,
    NO_PROMPT,
    PREFIX,
    Draft,
    EventType,
    Json,
    Part,
    arguments_object,
    canonical_json,
    readable,
)

ERASED: Final = "[This was erased on request.]"
"""The content shown for a redacted event."""
ERASED_TOKENS: Final = 40
"""An upper bound on the tokens of a redacted event, for every estimator."""
GIST_CHARS_MAX: Final = 120
KEPT_FIELDS: Final = ("type", "id", "turn_id", "author", "call_id", "tool", "is_error", "pinned", "occurred_at")
"""The fields of an event that a redaction keeps."""
AGES: Final = ("ttl_turns", "ttl_seconds")
EXPIRING: Final = frozenset({*AGES, "supersedes"})
PATHS: Final = (*FILES, *ADDRESSES)
"""Arguments that hold the one file or address that a tool reads."""

TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
REASONING_PARTS: Final = frozenset({"reasoning", "thinking", "redacted_thinking"})
IMAGE_PARTS: Final = frozenset({"image", "image_url", "input_image", "computer_screenshot"})
BLOB_PARTS: Final = frozenset({"inlineData", "inline_data", "fileData", "file_data"})
"""Gemini's types of images and files; the type is also the field that holds the data."""

_Owner = TypeVar("_Owner")
_Value = TypeVar("_Value")


class Kind(StrEnum):
    """The role of a block."""

    SYSTEM = "system"  # a system message inside the conversation (the system prompt is not a block)
    USER = "user"
    ASSISTANT = "assistant"
    CALL = "call"  # one tool call of the assistant
    RESULT = "result"  # its result, always after the assistant blocks of its round
    NOTE = "note"  # a message of ours to the model, e.g. a list of what was left out


ASSISTANT_KINDS: Final = frozenset({Kind.ASSISTANT, Kind.CALL})
"""The kinds of blocks that the model wrote."""
ROUND_KINDS: Final = ASSISTANT_KINDS | {Kind.RESULT}


@dataclass(frozen=True, slots=True)
class Block:
    """One visible event, or a synthetic line in place of events.

    `seq` is the event's; for a synthetic block, the last seq that it replaces (for a pending stub, its call's seq).
    `replaced`: `content` is ours (a stub, a shortened result), not the event's own. `ephemeral` blocks come after the
    last cache breakpoint and may differ in the next call.
    """

    kind: Kind
    seq: int
    content: str | Sequence[Part] | None = None
    call_id: str | None = None
    tool: str | None = None
    arguments: Json = None
    is_error: bool = False
    native: Mapping[str, Json] | None = None
    replaced: bool = False
    ephemeral: bool = False

    @property
    def text(self) -> str:
        """The text of the block: of a tool call its arguments as JSON."""
        return _as_text(self.arguments) if self.kind is Kind.CALL else content_text(self.content)


_KINDS: Final = {
    EventType.USER_MESSAGE: Kind.USER,
    EventType.ASSISTANT_MESSAGE: Kind.ASSISTANT,
    EventType.TOOL_CALL: Kind.CALL,
    EventType.TOOL_RESULT: Kind.RESULT,
    EventType.SYSTEM_MESSAGE: Kind.SYSTEM,
    EventType.AGENT_NOTE: Kind.NOTE,
    EventType.ANNOUNCE: Kind.NOTE,
}


class lazy(Generic[_Owner, _Value]):
    """A property that is computed on first access and kept in the instance's `__dict__` under its name.

    It holds no lock, unlike `functools.cached_property` before Python 3.12, whose lock all instances of a class share.
    Concurrent threads may each compute the value, so it must be a pure function of the instance; all of them get the
    one that is kept.
    """

    def __init__(self, compute: Callable[[_Owner], _Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[_Owner]) -> Self: ...

    @overload
    def __get__(self, instance: _Owner, owner: type[_Owner]) -> _Value: ...

    def __get__(self, instance: _Owner | None, owner: type[_Owner]) -> Self | _Value:
        """Return the cached value, computing it on first access; on the class, return this descriptor."""
        if instance is None:
            return self
        value: _Value = vars(instance).setdefault(self._name, self._compute(instance))
        return value


@dataclass(frozen=True)
class Event:
    """One row of the log. `body` is None if it was not read (a result shown as a stub needs none).

    A tool result has the `tool` that it was appended with, else its call's, its call's seq as `call_seq`, and its first
    line as `gist`. `at` is the time of the event in epoch seconds: the one its author gave, else the time it was
    stored. `chars` is the length of the stored body. A redacted event's `tokens` are ERASED_TOKENS, or 0 if it is never
    sent; its row and `cum_tokens` count it as it was logged.
    """

    seq: int
    type: EventType
    turn: int
    tokens: int
    cum_tokens: int = 0
    call_id: str | None = None
    tool: str | None = None
    call_seq: int | None = None
    author: str | None = None
    pinned: bool = False
    is_error: bool = False
    gist: str | None = None
    at: float = 0.0
    body: Mapping[str, Json] | None = field(default=None, compare=False)
    chars: int = field(default=0, compare=False)

    @lazy
    def block(self) -> Block:
        """The block that shows this event verbatim; cached, because an event never changes."""
        body = self.body or {}
        return Block(
            kind=_KINDS.get(self.type, Kind.SYSTEM),
            seq=self.seq,
            content=body.get("content"),
            call_id=self.call_id,
            tool=self.tool,
            arguments=body.get("arguments"),
            is_error=self.is_error,
            native=body.get("native"),
        )

    @lazy
    def names(self) -> Mapping[str, int]:
        """The identifiers in the event's text and how often each occurs; cached, because an event never changes."""
        return identifiers(self.text)

    @lazy
    def density(self) -> float:
        """The identifiers' share of the event's text, repeats not counted: near 1 for a listing, near 0 for prose."""
        text = self.text
        return sum(len(name) + 1 for name in self.names) / len(text) if text else 0.0

    @lazy
    def arguments(self) -> Mapping[str, Json]:
        """A call's arguments as an object, whether they were logged as an object or as text."""
        return arguments_object((self.body or {}).get("arguments"))

    @lazy
    def request_keys(self) -> tuple[str, ...]:
        """The keys by which calls that repeat each other are found: the exact call, and the tool with its file. Empty
        for a call that names no file."""
        arguments = self.arguments
        path = next((arguments[k] for k in PATHS if arguments.get(k)), None)
        return (f"{self.tool} {canonical_json(arguments)}", f"{self.tool} of {path}") if isinstance(path, str) else ()

    @lazy
    def has_single_argument(self) -> bool:
        """Whether the call has a single argument: if that is a path, its result is the whole file."""
        return sum(value is not None for value in self.arguments.values()) == 1

    @property
    def text(self) -> str:
        """The event's text: a call's tool and arguments, any other event's content."""
        body = self.body or {}
        if self.type is EventType.TOOL_CALL:
            return f"{self.tool} {readable(_as_text(body.get('arguments')))}"
        return content_text(body.get("content"))

    @lazy
    def has_reasoning(self) -> bool:
        """Whether the event holds a model's reasoning, which a provider wants back with the messages after it."""
        content = (self.body or {}).get("content")
        return isinstance(content, list) and any(part.get("type") in REASONING_PARTS for part in content)

    @lazy
    def expires(self) -> bool:
        """Whether the event's author set an expiry, or a key by which newer events supersede older ones."""
        return self.body is not None and not EXPIRING.isdisjoint(self.body)

    @lazy
    def expires_by_age(self) -> bool:
        """Whether the event expires at an age that its author set, so that no summary should preserve it."""
        body = self.body or {}
        return not self.pinned and any(isinstance(body.get(name), int) for name in AGES)

    def derive(self, compute: Callable[..., _Value], *given: Hashable) -> _Value:
        """Return `compute(self, *given)`, computed on first use; `compute` must be a pure function of these values."""
        known: dict[tuple[Hashable, ...], _Value] = vars(self).setdefault("_derived", {})
        key = (compute, *given)
        return known[key] if key in known else known.setdefault(key, compute(self, *given))

    @property
    def ends_prompts(self) -> bool:
        """Whether the event only marks the end of all earlier system prompts."""
        return self.type is EventType.SYSTEM_PROMPT and (self.body or {}).get("native") == NO_PROMPT.native

    @lazy
    def rendered(self) -> bool:
        """Whether a model may see this event in the conversation."""
        return self.type not in BOOKKEEPING and self.type not in PREFIX


def event_time(body: Mapping[str, Json] | None, stored_at: float) -> float:
    """Return the time of an event in epoch seconds: its `occurred_at`, as UTC if without a zone, else `stored_at`."""
    stated = body.get("occurred_at") if body else None
    if not isinstance(stated, str):
        return stored_at
    try:
        return to_seconds(parse_time(stated))
    except ValueError:
        return stored_at


def tombstone(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the body of a redacted event: the fields in KEPT_FIELDS, which connect it to other events."""
    kept = {name: body[name] for name in KEPT_FIELDS if name in body}
    if body["type"] == EventType.TOOL_CALL:
        kept["arguments"] = {}
    elif body["type"] not in BOOKKEEPING:
        kept["content"] = [] if body["type"] == EventType.TOOLS else ERASED
    return {**kept, "redacted": True}


def content_text(content: Json) -> str:
    """Return the readable text of an event's content: its text parts joined, other parts named."""
    if content is None:
        return ""
    if isinstance(content, str):
        return readable(content)
    return readable(
        "\n".join(
            part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type', 'part')}]" for part in content
        )
    )


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else canonical_json(value)


_BLANK: Final = re.compile(r"\d{1,7}[→|]")


def first_line(draft: Draft) -> str | None:
    """Return the first line of a result that is not blank, in at most GIST_CHARS_MAX characters; None without one.

    The number of a blank line in a listing is no text.
    """
    content = draft.content
    if isinstance(content, str):
        text = content
    else:
        text = next((p["text"] for p in content or () if isinstance(p.get("text"), str)), "")
    lines = (" ".join(raw.split()) for raw in readable(text[:4096]).splitlines())
    line = next((line for line in lines if line and not _BLANK.fullmatch(line)), "")
    if not line:
        return None
    return line if len(line) <= GIST_CHARS_MAX else line[: GIST_CHARS_MAX - 1] + "…"


def paths(event: Event) -> tuple[str, ...]:
    """Return the files that an event is about: its own path, and the paths in single arguments of a call."""
    own = (event.body or {}).get("path")
    single = (event.arguments.get(name) for name in PATHS) if event.type is EventType.TOOL_CALL else ()
    return tuple(dict.fromkeys(readable(path) for path in (own, *single) if isinstance(path, str) and path))
