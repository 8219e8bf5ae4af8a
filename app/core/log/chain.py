"""The hash chain of a conversation, which finds a client's own messages in the log.

The chain is over events, not messages, so it does not depend on the messages' format or grouping. An event's hash
covers the whole conversation up to and including it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.log.event import REASONING_PARTS, TEXT_PARTS
from app.core.log.events import EventType, Json, arguments_object, canonical_json

CHAINED: Final = frozenset(
    {
        EventType.USER_MESSAGE,
        EventType.ASSISTANT_MESSAGE,
        EventType.TOOL_CALL,
        EventType.TOOL_RESULT,
        EventType.SYSTEM_MESSAGE,
    }
)
"""The types of events that clients send back with every request."""
HASH_BYTES: Final = 16
START: Final = bytes(HASH_BYTES)
"""The hash of an empty conversation."""
_SDK_ONLY: Final = frozenset({"cache_control", "annotations", "parsed", "parsed_output", "status", "index", "logprobs"})
_ANSWER_FIELDS: Final = ("audio", "function_call")
"""Fields of an assistant's chat message that may hold an answer in addition to `content`."""
_encode: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Tip:
    """The end of a log's chain: its last chained event `seq`, the `number` of events in the conversation up to there,
    and the `hash` of the last of them."""

    seq: int = 0
    number: int = 0
    hash: bytes = START


@dataclass(frozen=True, slots=True)
class Link:
    """An event of a conversation: its index in the given events, and the hash of the conversation up to it."""

    place: int
    hash: bytes


def links(bodies: Iterable[Mapping[str, Json]], start: bytes = START) -> list[Link]:
    """Return the links of events, stored or new, that continue a conversation with the hash `start`."""
    found: list[Link] = []
    for place, body in enumerate(bodies):
        text = canonical(body)
        if text is not None:
            start = hashlib.blake2b(start + text, digest_size=HASH_BYTES).digest()
            found.append(Link(place, start))
    return found


def count_repeated(before: Sequence[Mapping[str, Json]], after: Sequence[Mapping[str, Json]]) -> int:
    """Return the number of events at the beginning of `after` that repeat the last ones of `before`."""
    last = [text for body in before if (text := canonical(body)) is not None]
    first = [(place, text) for place, body in enumerate(after, 1) if (text := canonical(body)) is not None]
    for count in range(min(len(last), len(first)), 0, -1):
        if last[-count:] == [text for _, text in first[:count]]:
            return first[count - 1][0]
    return 0


def canonical(body: Mapping[str, Json]) -> bytes | None:
    """Return the content of an event in a form that equivalent spellings share; None if it is not in the conversation.

    Reasoning is left out, since clients may drop it and cannot change it; a message of nothing else is not part of the
    conversation. Fields that only SDKs or caches read are left out, too.
    """
    form = pieces(body)
    return None if form is None else _join(form)


def pieces(body: Mapping[str, Json]) -> list[str] | None:
    """Return the parts of an event's canonical form: its type and call id, then tool and arguments or content."""
    kind = body["type"]
    if kind not in CHAINED:
        return None
    own = body.get("native") or {}
    call_id = own.get("call_id") or body.get("call_id") or ""  # the client's id, if the log gave the call another one
    if kind == EventType.TOOL_CALL:
        return [str(kind), call_id, body.get("tool") or "", _text(arguments_object(body.get("arguments")))]
    head = own.get("head") or {}
    content = body.get("content")
    refusal = head.get("refusal") if content is None else None
    parts = _parts(refusal if isinstance(refusal, str) else content)
    extra = {name: head[name] for name in _ANSWER_FIELDS if head.get(name)} if head else {}
    if isinstance(extra.get("audio"), Mapping):
        extra["audio"] = extra["audio"].get("id")
    if kind == EventType.ASSISTANT_MESSAGE and not parts and not extra:
        return None
    flag = "error" if body.get("is_error") else _text(extra) if extra else ""
    return [str(kind), call_id, flag, *parts]


def canonical_prompt(content: Json) -> bytes:
    """Return the canonical form of a system prompt, which equivalent spellings share."""
    return _join(_parts(content))


def canonical_tool_list(definitions: Iterable[Json]) -> bytes:
    """Return the canonical form of tool definitions, which equivalent spellings share."""
    return _text([_clean(definition) for definition in definitions]).encode("utf-8", "surrogatepass")


def _join(texts: Sequence[str]) -> bytes:
    """Join texts, each with its length, so that the result is unambiguous."""
    return "".join([f"{len(text)}:{text}" for text in texts]).encode("utf-8", "surrogatepass")


def _text(value: Json) -> str:
    try:
        return _encode(value)
    except (ValueError, TypeError):  # JSON has no keys of several types
        return canonical_json(value)


def _parts(content: Json) -> list[str]:
    """Return the parts of content as texts; parts that are not text become JSON after a NUL. Blank text is left out."""
    if isinstance(content, str):
        return [form] if (form := _plain(content)) else []
    return [] if content is None else [form for part in content if (form := _part(part))]


def _part(part: Json) -> str:
    if not isinstance(part, Mapping):
        return f"\0{_text(part)}"
    kind = str(part.get("type"))
    if kind in REASONING_PARTS:
        return ""
    text = part.get("refusal") if kind == "refusal" else part.get("text") if kind in TEXT_PARTS else None
    if isinstance(text, str):
        return _plain(text)
    kept = {name: _clean(child) for name, child in part.items() if child is not None and name not in _SDK_ONLY}
    return f"\0{_text(kept)}"


def _plain(text: str) -> str:
    """Return the text with its leading NUL doubled, so that it cannot be taken for JSON after a NUL; empty if blank."""
    return "" if not text.strip() else f"\0{text}" if text[0] == "\0" else text


def _clean(value: Json) -> Json:
    """Return a value without nulls and cache markers."""
    if isinstance(value, Mapping):
        kept = ((name, child) for name, child in value.items() if child is not None and name != "cache_control")
        return {name: _clean(child) for name, child in kept}
    return [_clean(child) for child in value] if isinstance(value, list) else value
