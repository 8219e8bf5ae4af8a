"""One counter for what triggers a reduction and for what comes out of it.

OpenAI's models are counted by their own tokenizer, Claude's by the same one brought into their tokens
(`core/tokens/scales`).
Of others none is known, so their tokens are estimated from UTF-8 bytes by kind of text, with a margin on top: rounded
towards more tokens from what a provider billed for 23 recorded coding sessions, tool results at 2.71 bytes per token
(median of 321 calls whose input grew by little else; 2.14 at the 5th percentile), call arguments at 2.84 (65 calls),
prose at 3.03 (50 calls). Counting bytes, not characters, also covers scripts whose characters cost a token or more
each.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from app.core.log.events import BOOKKEEPING, Draft, Json, Part, arguments_object, canonical_json, is_object_text
from app.core.log.parts import IMAGE_PARTS, REASONING_PARTS, TEXT_PARTS
from app.core.tokens.images import ImageRule, dimensions
from app.core.tokens.model_catalog import ModelProfile
from app.core.tokens.scales import MARGIN, SCALES, scaled

MESSAGE_TOKENS: Final = 4
"""Role and separators of one message: OpenAI's cookbook counts 3, and 1 for a name."""
CALL_TOKENS: Final = 10
"""A tool call's wrapping beside its name and arguments, and likewise a result's."""
REQUEST_TOKENS: Final = 12
"""What every reply is primed with (3, OpenAI's cookbook), and words that open a conversation begun by the assistant."""
SYSTEM_TOKENS: Final = 12
"""The wrapping of a system message inside the conversation, where a provider has no such role."""
RESULT_IMAGE_TOKENS: Final = 12
"""The words that introduce a result's images, where a provider's results hold text only."""


class TextKind(StrEnum):
    """What a text is, for estimators whose density depends on it."""

    PROSE = "prose"
    RESULT = "result"
    DATA = "data"  # call arguments, tool definitions


class Tokenizer(Protocol):
    """An exact tokenizer."""

    @property
    def name(self) -> str:
        """The encoding's name."""

    def count(self, text: str) -> int:
        """Tokens of `text`; special tokens in it count as ordinary text."""


class Estimator(Protocol):
    """Guesses tokens; `margin` is the share by which it may undercount and that targets are lowered for."""

    @property
    def name(self) -> str:
        """As shown in every answer."""

    @property
    def margin(self) -> float:
        """0.1 means: the truth may be 10% above the guess."""

    def count(self, text: str, kind: TextKind) -> int:
        """Tokens of one text."""


@dataclass(frozen=True, slots=True)
class Heuristic:
    """Bytes per token by kind of text."""

    name: str = "heuristic"
    margin: float = 0.1
    prose: float = 3.0
    result: float = 2.6
    data: float = 2.6

    def count(self, text: str, kind: TextKind) -> int:
        """Bytes over the kind's density, rounded up."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        density = self.prose if kind is TextKind.PROSE else self.result if kind is TextKind.RESULT else self.data
        return math.ceil(size / density)


@dataclass(frozen=True, slots=True)
class Exact:
    """A tokenizer's own count; the margin covers the vendor's unpublished wrapping of tools."""

    tokenizer: Tokenizer
    margin: float = 0.02

    @property
    def name(self) -> str:
        """`tiktoken:<encoding>`."""
        return f"tiktoken:{self.tokenizer.name}"

    def count(self, text: str, kind: TextKind) -> int:
        """Exact tokens; the kind does not matter."""
        return self.tokenizer.count(text)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A tokenizer's count brought into the tokens of another one that is not published (`core/tokens/scales`)."""

    tokenizer: Tokenizer
    scale: str
    margin: float = MARGIN

    @property
    def name(self) -> str:
        """`<scale>:<encoding>`."""
        return f"{self.scale}:{self.tokenizer.name}"

    def count(self, text: str, kind: TextKind) -> int:
        """By what the text consists of, rounded up; the kind does not matter."""
        return math.ceil(scaled(self.tokenizer.count(text), text, SCALES[self.scale])) if text else 0


@dataclass(frozen=True, slots=True)
class Formula:
    """A rule of thumb as one of the published designs has it, whatever the text; its margin is a courtesy.

    Dense tool output takes half as much again (see above): for a view whose model is strict, name another estimator.
    """

    name: str
    rule: Callable[[str], int]
    margin: float = 0.05

    def count(self, text: str, kind: TextKind) -> int:
        """By the rule."""
        return self.rule(text)


HEURISTIC: Final = Heuristic()
FORMULAS: Final[Mapping[str, Formula]] = {
    "ceil4": Formula("ceil4", lambda text: (len(text) + 3) // 4),
    "bytes4+1": Formula("bytes4+1", lambda text: len(text.encode("utf-8", "replace")) // 4 + 1),
    "chars4min1": Formula("chars4min1", lambda text: max(1, (len(text) + 3) // 4)),
}


def estimator_named(name: str, tokenizers: Mapping[str, Tokenizer]) -> Estimator:
    """An estimator by the name it has in policies and answers. A vocabulary that is not there is never silent."""
    if name in FORMULAS:
        return FORMULAS[name]
    scale, _, encoding = name.partition(":")
    if encoding and (scale in SCALES or scale == "tiktoken"):
        tokenizer = tokenizers.get(encoding)
        if tokenizer is None:
            return Heuristic(name=f"heuristic:{encoding}-missing")
        return Scaled(tokenizer, scale) if scale in SCALES else Exact(tokenizer)
    return Heuristic(name=name)


def estimator_for(
    profile: ModelProfile, tokenizers: Mapping[str, Tokenizer], heuristic: str = HEURISTIC.name
) -> Estimator:
    """The estimator for a model: its tokenizer, one brought into its tokens, or the one named `heuristic` where none is
    known of it.

    A rule of thumb that is named counts for every model but those whose own tokenizer is there. A missing vocabulary is
    never silent: the name says so in every answer.
    """
    if profile.encoding is None or (profile.scale and heuristic != HEURISTIC.name):
        return estimator_named(heuristic, tokenizers)
    return estimator_named(f"{profile.scale or 'tiktoken'}:{profile.encoding}", tokenizers)


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts what is sent to one model: texts by its estimator, images by its vendor's rule."""

    estimator: Estimator
    image: ImageRule

    def event(self, draft: Draft) -> int:
        """Tokens of one event as part of a request, its share of the wrapping included; 0 if it never reaches one."""
        if draft.type in BOOKKEEPING:
            return 0
        if draft.type == "tools":
            return self.estimator.count(_as_text(draft.content), TextKind.DATA) + MESSAGE_TOKENS
        if draft.type == "tool.call":
            name = self.estimator.count(draft.tool or "", TextKind.DATA)
            extra = self.content(draft.content, TextKind.PROSE) if draft.content else 0
            return self.arguments(draft.arguments) + name + CALL_TOKENS + extra + self.native(draft.native)
        if draft.type == "tool.result":
            return self.content(draft.content, TextKind.RESULT) + CALL_TOKENS + self.native(draft.native)
        wrapping = MESSAGE_TOKENS + (SYSTEM_TOKENS if draft.type == "system.message" else 0)
        return self.content(draft.content, TextKind.PROSE) + wrapping + self.native(draft.native)

    def arguments(self, arguments: Json) -> int:
        """Tokens of a call's arguments in whichever format takes more: as they were written, or as an object."""
        if not isinstance(arguments, str):
            return self.estimator.count(canonical_json(arguments_object(arguments)), TextKind.DATA)
        written = self.estimator.count(arguments, TextKind.DATA)
        obj = canonical_json(arguments_object(arguments))
        if len(obj) <= len(arguments) and is_object_text(arguments):
            return written
        return max(written, self.estimator.count(obj, TextKind.DATA))

    def result(self, text: str) -> int:
        """Tokens of a tool result that holds `text`, wrapping included."""
        return self.estimator.count(text, TextKind.RESULT) + CALL_TOKENS

    def message(self, text: str) -> int:
        """Tokens of a message that holds `text`, wrapping included."""
        return self.estimator.count(text, TextKind.PROSE) + MESSAGE_TOKENS

    def content(self, content: str | Sequence[Part] | None, kind: TextKind) -> int:
        """Tokens of an event's content."""
        if content is None:
            return 0
        if isinstance(content, str):
            return self.estimator.count(content, kind)
        return sum(self.part(part, kind) for part in content)

    def part(self, part: Part, kind: TextKind) -> int:
        """Tokens of one part: its text, image or content by their own rules, and all else that it holds as the JSON it
        is."""
        tokens, rest = self._known(part, kind)
        return tokens + (self.estimator.count(canonical_json(rest), TextKind.DATA) if rest else 0)

    def native(self, native: Mapping[str, Json] | None) -> int:
        """What only the provider's own shape holds: refusals, names, reasoning beside the message."""
        own = {name: value for name, value in (native or {}).items() if name != "format" and value}
        return self.estimator.count(canonical_json(own), TextKind.DATA) if own else 0

    def _known(self, part: Part, kind: TextKind) -> tuple[int, Part]:
        """Tokens of what has a rule of its own, and the rest of the part."""
        what = said if isinstance(said := part.get("type"), str) else None
        if what in IMAGE_PARTS:
            introduced = RESULT_IMAGE_TOKENS if kind is TextKind.RESULT else 0
            return self.image.tokens(_image_size(part), _detail(part)) + introduced, _beside_image(part)
        if isinstance(text := part.get("text"), str):
            return self.estimator.count(text, kind), _without(part, "text", _TEXTS)
        if what == "thinking" and isinstance(thinking := part.get("thinking"), str):
            return self.estimator.count(thinking, TextKind.PROSE), _without(part, "thinking", REASONING_PARTS)
        if what == "redacted_thinking" and isinstance(data := part.get("data"), str):
            return self.estimator.count(data, TextKind.DATA), _without(part, "data", REASONING_PARTS)
        if isinstance(inner := part.get("content"), list) and all(isinstance(p, Mapping) for p in inner):
            return sum(self.part(p, kind) for p in inner), _without(part, "content", _TEXTS)
        return 0, part


_TEXTS: Final = TEXT_PARTS | REASONING_PARTS
"""Types whose name is part of the wrapping of a message."""
_IMAGE_FIELDS: Final = frozenset(
    {"type", "source", "image_url", "detail", "mime", "media_type", "data", "url", "file_id"}
)
_IMAGE_FIELD_CHARS: Final = 64
"""What a field of an image holds at the most that only says what the image is."""


def _without(part: Part, name: str, wrapped: frozenset[str]) -> Part:
    """The part without what was counted, and without a type that is no more than wrapping."""
    what = part.get("type")
    gone = (name, "type") if isinstance(what, str) and what in wrapped else (name,)
    return {key: value for key, value in part.items() if key not in gone}


def _beside_image(part: Part) -> Part:
    """What an image's part holds besides the image: nothing, in the shapes that the providers know."""
    rest: dict[str, Json] = {}
    for name, value in part.items():
        if isinstance(value, Mapping) and name in ("source", "image_url"):
            value = _beside_image(value) or None
        elif name in ("data", "url", "image_url") and isinstance(value, str):
            value = None if name == "data" or value.startswith("data:") else value
        elif name in _IMAGE_FIELDS and isinstance(value, str) and len(value) <= _IMAGE_FIELD_CHARS:
            value = None
        if value is not None or name not in _IMAGE_FIELDS:
            rest[name] = value
    return rest


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _image_size(part: Part) -> tuple[int, int] | None:
    data = _image_data(part)
    return dimensions(data) if data else None


def _image_data(part: Part) -> str | None:
    """The base64 data of an image part in any provider's shape; None for one that is only referred to."""
    source = part.get("source")
    if isinstance(source, Mapping):
        return source.get("data") if isinstance(source.get("data"), str) else None
    if isinstance(part.get("data"), str):
        return str(part["data"])
    url = part.get("image_url", part.get("url"))
    url = url.get("url") if isinstance(url, Mapping) else url
    if isinstance(url, str) and url.startswith("data:") and "," in url:
        return url.split(",", 1)[1]
    return None


def _detail(part: Part) -> str | None:
    url = part.get("image_url")
    detail = url.get("detail") if isinstance(url, Mapping) else part.get("detail")
    return detail if isinstance(detail, str) else None
