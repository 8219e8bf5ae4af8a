"""Token counters. The same counter decides whether to reduce a context and measures the result.

OpenAI's models are counted by their own tokenizer, Claude's by the same tokenizer scaled to Claude's
(`core/tokens/scales`). Other models are estimated from UTF-8 bytes by kind of text, plus a margin, rounded towards more
tokens from what a provider billed for 23 recorded coding sessions: tool results at 2.71 bytes per token (median of 321
calls whose input grew by little else; 2.14 at the 5th percentile), call arguments at 2.84 (65 calls), prose at 3.03 (50
calls). Counting bytes, not characters, also covers scripts whose characters cost a token or more each.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias

from app.core import dataclass, replace
from app.core.log.event import BLOB_PARTS, IMAGE_PARTS, REASONING_PARTS, TEXT_PARTS
from app.core.log.events import BOOKKEEPING, Draft, Json, Part, arguments_object, canonical_json, read_arguments
from app.core.tokens.models import ModelProfile
from app.core.tokens.scales import MARGIN, SCALES, ImageRule, Tokenizer, dimensions, scaled

MESSAGE_TOKENS: Final = 4
"""Role and separators of one message: OpenAI's cookbook counts 3, and 1 for a name."""
CALL_TOKENS: Final = 10
"""The wrapping of a tool call's name and arguments, and likewise of a result."""
REQUEST_TOKENS: Final = 12
"""The priming of every reply (3, OpenAI's cookbook), and the words that open a conversation begun by the assistant."""
SYSTEM_TOKENS: Final = 12
"""The wrapping of a system message inside the conversation, for providers without such a role."""
RESULT_IMAGE_TOKENS: Final = 12
"""The words that introduce a result's images, for providers whose results hold text only."""
PROSE_DENSITY: Final = 3.0
DENSITY: Final = 2.6
"""The bytes per token by which the heuristic counts prose, and results, arguments and definitions."""
ORDINARY_CHARS: Final = 3
"""Prose, code and JSON have more characters than this to a token; keys, hashes, numbers and noise have fewer."""
DENSE_FACTOR: Final = 1.06
"""The most tokens of cl100k_base for one of o200k_base in such a text (1.05 measured, of base64)."""
TEXTS_CACHED: Final = 1_024
"""Number of our own texts (stubs, notes, summaries as shown) whose counts are cached, least recently used out.

Plans weigh the same texts repeatedly, and a tokenizer takes a millisecond for ten thousand characters. At that length
all texts take 10 MB.
"""


class TextKind(StrEnum):
    """The kind of a text, for estimators whose density depends on it."""

    PROSE = "prose"
    RESULT = "result"
    DATA = "data"  # call arguments, tool definitions


@dataclass(frozen=True, slots=True)
class Heuristic:
    """An estimator by bytes per token."""

    name: str = "heuristic"
    margin: float = 0.1

    def count(self, text: str, kind: TextKind) -> int:
        """Return the bytes divided by the density of prose or of anything else, rounded up."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        return math.ceil(size / (PROSE_DENSITY if kind is TextKind.PROSE else DENSITY))


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
        """Return the exact tokens; the kind does not matter."""
        return self.tokenizer.count(text)


@dataclass(frozen=True, slots=True)
class LargerCount:
    """Two tokenizers as one, which counts a text by the tokenizer that makes more tokens of it.

    Beyond ASCII they differ up to threefold. In ASCII they hardly do, so `usual` alone counts it: the other takes
    several times as long for a dense text.
    """

    usual: Tokenizer
    other: Tokenizer

    @property
    def name(self) -> str:
        """The usual tokenizer's name."""
        return self.usual.name

    def count(self, text: str) -> int:
        """Return the larger count."""
        tokens = self.usual.count(text)
        if not text.isascii():
            return max(tokens, self.other.count(text))
        return tokens if len(text) > ORDINARY_CHARS * tokens else math.ceil(DENSE_FACTOR * tokens)

    @property
    def in_parts(self) -> "LargerCount":
        """This tokenizer itself, since the larger count of a text is not the sum of those of its parts."""
        return self


@dataclass(frozen=True, slots=True)
class Scaled:
    """A tokenizer's count, scaled to another tokenizer that is not published (`core/tokens/scales`)."""

    tokenizer: Tokenizer
    scale: str
    margin: float = MARGIN

    @property
    def name(self) -> str:
        """`<scale>:<encoding>`."""
        return f"{self.scale}:{self.tokenizer.name}"

    def count(self, text: str, kind: TextKind) -> int:
        """Return the scaled count by the text's characters, rounded up; the kind does not matter."""
        return math.ceil(scaled(self.tokenizer.count(text), text, SCALES[self.scale])) if text else 0


@dataclass(frozen=True, slots=True)
class Formula:
    """A rule of thumb from a published design, for any text."""

    name: str
    rule: Callable[[str], int]
    margin: float = 0.05

    def count(self, text: str, kind: TextKind) -> int:
        """Return the rule's count."""
        return self.rule(text)


@dataclass(frozen=True, slots=True)
class Checked:
    """An estimator by size that counts no text as less than the estimator `least` does.

    Sizes predict little for emoji, base64, hashes, logs and digits.
    """

    name: str
    rule: "Estimator"
    least: "Estimator"

    @property
    def margin(self) -> float:
        """The larger margin."""
        return max(self.rule.margin, self.least.margin)

    def count(self, text: str, kind: TextKind) -> int:
        """Return the larger count."""
        return max(self.rule.count(text, kind), self.least.count(text, kind))


Estimator: TypeAlias = Heuristic | Exact | Scaled | Formula | Checked
"""An estimator of tokens. A true count may exceed the estimate by its `margin`, by which the target is reduced."""

HEURISTIC: Final = Heuristic()
FORMULAS: Final[Mapping[str, Formula]] = {
    "ceil4": Formula("ceil4", lambda text: (len(text) + 3) // 4),
    "bytes4+1": Formula("bytes4+1", lambda text: len(text.encode("utf-8", "replace")) // 4 + 1),
    "chars4min1": Formula("chars4min1", lambda text: max(1, (len(text) + 3) // 4)),
}
USUAL_ENCODING: Final = "o200k_base"
OTHER_ENCODING: Final = "cl100k_base"
CHECKED_HEURISTIC: Final = f"{HEURISTIC.name}:{USUAL_ENCODING}"
"""The name of the heuristic with the tokenizers as its lower bound; the bare name means that they are missing."""


def estimator_named(name: str, tokenizers: Mapping[str, Tokenizer], own: Estimator | None = None) -> Estimator:
    """Return the estimator with a name as in responses. If its vocabulary is missing, its own name says so.

    The heuristic and rules of thumb count no less than `own`, the model's, or the usual tokenizers if that is None. The
    heuristic's bare name has no such bound: sessions that began with it keep counting their events in the same way.
    """
    rule = HEURISTIC if name == CHECKED_HEURISTIC else FORMULAS.get(name)
    if rule is not None:
        least = own or _usual(tokenizers)
        return rule if least is None else Checked(name, rule, least)
    scale, _, encoding = name.partition(":")
    if encoding and (scale in SCALES or scale == "tiktoken"):
        tokenizer = tokenizers.get(encoding)
        if tokenizer is None:
            return Heuristic(name=f"heuristic:{encoding}-missing")
        return Scaled(tokenizer, scale) if scale in SCALES else Exact(tokenizer)
    return Heuristic(name=name)


def _usual(tokenizers: Mapping[str, Tokenizer]) -> Exact | None:
    usual, other = tokenizers.get(USUAL_ENCODING), tokenizers.get(OTHER_ENCODING)
    return None if usual is None else Exact(usual if other is None else LargerCount(usual, other))


def estimator_for(profile: ModelProfile, tokenizers: Mapping[str, Tokenizer], named: str = HEURISTIC.name) -> Estimator:
    """Return a model's estimator: its own tokenizer, else another one scaled to it, else the one that a policy names.

    A name other than the heuristic's also replaces the estimator of a scaled tokenizer, and then counts no less than
    that. If a vocabulary is missing, the estimator's name says so in every response.
    """
    if profile.encoding is None:
        return estimator_named(CHECKED_HEURISTIC if named == HEURISTIC.name else named, tokenizers)
    own = estimator_named(f"{profile.scale or 'tiktoken'}:{profile.encoding}", tokenizers)
    replaced = profile.scale is not None and named != HEURISTIC.name
    return estimator_named(named, tokenizers, own) if replaced else own


@lru_cache(maxsize=TEXTS_CACHED)
def _cached_count(estimator: Estimator, text: str, kind: TextKind) -> int:
    return _in_parts(estimator).count(text, kind)


@lru_cache
def _in_parts(estimator: Estimator) -> Estimator:
    if isinstance(estimator, Exact | Scaled):
        return replace(estimator, tokenizer=estimator.tokenizer.in_parts)
    return estimator


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter for one model: texts by its estimator, images by its vendor's rule."""

    estimator: Estimator
    image: ImageRule

    def event(self, draft: Draft) -> int:
        """Return the tokens of one event in a request, wrapping included; 0 for bookkeeping, which is never sent."""
        if draft.type in BOOKKEEPING:
            return 0
        if draft.type == "tools":
            text = draft.content if isinstance(draft.content, str) else canonical_json(draft.content)
            return self.estimator.count(text, TextKind.DATA) + MESSAGE_TOKENS
        if draft.type == "tool.call":
            return self.call(draft.tool, draft.arguments, draft.content, draft.native)
        if draft.type == "tool.result":
            return self.content(draft.content, TextKind.RESULT) + CALL_TOKENS + self.native(draft.native)
        wrapping = MESSAGE_TOKENS + (SYSTEM_TOKENS if draft.type == "system.message" else 0)
        return self.content(draft.content, TextKind.PROSE) + wrapping + self.native(draft.native)

    def call(
        self, tool: str | None, arguments: Json, content: str | Sequence[Part] | None, native: Mapping[str, Json] | None
    ) -> int:
        """Return the tokens of a tool call, wrapping included."""
        name = _cached_count(self.estimator, tool or "", TextKind.DATA)
        extra = self.content(content, TextKind.PROSE) if content else 0
        return self.arguments(arguments) + name + CALL_TOKENS + extra + self.native(native)

    def arguments(self, arguments: Json) -> int:
        """Return the tokens of a call's arguments, as they were written or as an object, whichever takes more."""
        if not isinstance(arguments, str):
            return self.estimator.count(canonical_json(arguments_object(arguments)), TextKind.DATA)
        written = self.estimator.count(arguments, TextKind.DATA)
        value, strict = read_arguments(arguments)
        obj = canonical_json(value)
        if strict and len(obj) <= len(arguments):
            return written
        return max(written, self.estimator.count(obj, TextKind.DATA))

    def result(self, text: str) -> int:
        """Return the tokens of a tool result that holds `text`, wrapping included."""
        return _cached_count(self.estimator, text, TextKind.RESULT) + CALL_TOKENS

    def message(self, text: str) -> int:
        """Return the tokens of a message that holds `text`, wrapping included."""
        return _cached_count(self.estimator, text, TextKind.PROSE) + MESSAGE_TOKENS

    def content(self, content: str | Sequence[Part] | None, kind: TextKind) -> int:
        """Return the tokens of an event's content."""
        if content is None:
            return 0
        if isinstance(content, str):
            return self.estimator.count(content, kind)
        return sum(self.part(part, kind) for part in content)

    def part(self, part: Part, kind: TextKind) -> int:
        """Return the tokens of a part: its text, image or content by their own rules, all its other fields as JSON."""
        tokens, rest = self._known(part, kind)
        return tokens + (self.estimator.count(canonical_json(rest), TextKind.DATA) if rest else 0)

    def native(self, native: Mapping[str, Json] | None) -> int:
        """Return the tokens of fields that only the provider's shape holds, such as refusals, names and reasoning."""
        own = {name: value for name, value in (native or {}).items() if name != "format" and value}
        return self.estimator.count(canonical_json(own), TextKind.DATA) if own else 0

    def _known(self, part: Part, kind: TextKind) -> tuple[int, Part]:
        """Return the tokens of the fields that have a rule of their own, and the part without them."""
        kind_name = value if isinstance(value := part.get("type"), str) else None
        introduction = RESULT_IMAGE_TOKENS if kind is TextKind.RESULT else 0
        if kind_name in IMAGE_PARTS:
            return self.image.tokens(*_image(part)) + introduction, _non_image_fields(part)
        if kind_name in BLOB_PARTS and (data := _image_blob(part.get(kind_name))) is not None:
            return self.image.tokens(dimensions(data)) + introduction, _without(part, kind_name, BLOB_PARTS)
        if isinstance(text := part.get("text"), str):
            return self.estimator.count(text, kind), _without(part, "text", _TEXTS)
        if kind_name == "thinking" and isinstance(thinking := part.get("thinking"), str):
            return self.estimator.count(thinking, TextKind.PROSE), _without(part, "thinking", REASONING_PARTS)
        if kind_name == "redacted_thinking" and isinstance(data := part.get("data"), str):
            return self.estimator.count(data, TextKind.DATA), _without(part, "data", REASONING_PARTS)
        if isinstance(inner := part.get("content"), list) and all(isinstance(p, Mapping) for p in inner):
            return sum(self.part(p, kind) for p in inner), _without(part, "content", _TEXTS)
        return 0, part


_TEXTS: Final = TEXT_PARTS | REASONING_PARTS
"""Part types whose name is counted with the message's wrapping."""
_IMAGE_FIELDS: Final = {"type", "source", "image_url", "detail", "mime", "media_type", "data", "url", "file_id"}
_IMAGE_FIELD_CHARS: Final = 64
"""The longest value of an image's field that merely describes the image and is not counted."""


def _without(part: Part, name: str, wrapped: frozenset[str]) -> Part:
    """Return the part without the field that was counted, and without its type if that is in `wrapped`."""
    what = part.get("type")
    dropped = (name, "type") if isinstance(what, str) and what in wrapped else (name,)
    return {key: value for key, value in part.items() if key not in dropped}


def _image_blob(blob: Json) -> str | None:
    """Return the base64 data of an image in Gemini's shape; None for anything else."""
    if not isinstance(blob, Mapping) or not isinstance(data := blob.get("data"), str):
        return None
    kind = blob.get("mimeType", blob.get("mime_type"))
    return data if isinstance(kind, str) and kind.startswith("image/") else None


def _non_image_fields(part: Part) -> Part:
    """Return the fields of an image part other than the image; empty in the providers' own shapes."""
    rest: dict[str, Json] = {}
    for name, value in part.items():
        if isinstance(value, Mapping) and name in ("source", "image_url"):
            value = _non_image_fields(value) or None
        elif name in ("data", "url", "image_url") and isinstance(value, str):
            value = None if name == "data" or value.startswith("data:") else value
        elif name in _IMAGE_FIELDS and isinstance(value, str) and len(value) <= _IMAGE_FIELD_CHARS:
            value = None
        if value is not None or name not in _IMAGE_FIELDS:
            rest[name] = value
    return rest


def _image(part: Part) -> tuple[tuple[int, int] | None, str | None]:
    """Return the size of an image in any provider's shape, and its detail; None where the part does not tell."""
    source, url, detail = part.get("source"), part.get("image_url", part.get("url")), part.get("detail")
    if isinstance(url, Mapping):
        detail = url.get("detail") if "image_url" in part else detail
        url = url.get("url")
    data = source.get("data") if isinstance(source, Mapping) else part.get("data")
    in_url = isinstance(url, str) and url.startswith("data:") and "," in url
    if in_url and not isinstance(data, str) and not isinstance(source, Mapping):
        data = url.split(",", 1)[1]
    size = dimensions(data) if isinstance(data, str) and data else None
    return size, detail if isinstance(detail, str) else None
