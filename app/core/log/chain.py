"""The hash chain of a conversation, by which a client's own messages are found again in the log.

It is over events and not over messages, so it is the same whatever format they came in and however they were grouped.
An event's hash is that of the whole conversation up to it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from app.core.log.events import Draft, EventType, Json, arguments_object, canonical_json
from app.core.log.parts import REASONING_PARTS, TEXT_PARTS

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
_encode: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Tip:
    """How far a log is chained: up to the event `seq`, of which `number` are of the conversation, the last with this
    `hash`."""

    seq: int = 0
    number: int = 0
    hash: bytes = START


@dataclass(frozen=True, slots=True)
class Link:
    """An event of a conversation: its place among the events that were given, and the hash of all up to it."""

    place: int
    hash: bytes


def links(bodies: Iterable[Mapping[str, Json] | Draft], start: bytes = START) -> list[Link]:
    """The links of events, as they are stored or as they are to be, behind a conversation with the hash `start`."""
    found: list[Link] = []
    for place, body in enumerate(bodies):
        text = canonical(body.body() if isinstance(body, Draft) else body)
        if text is not None:
            start = hashlib.blake2b(start + text, digest_size=HASH_BYTES).digest()
            found.append(Link(place, start))
    return found


def canonical(body: Mapping[str, Json]) -> bytes | None:
    """What an event says, in a form that two ways to write the same share; None if it is no part of the conversation.

    Reasoning is left out, since clients may drop it and cannot change it, and an answer that is nothing else. What only
    SDKs or caches look at is left out, too.
    """
    kind = body["type"]
    if kind not in CHAINED:
        return None
    said: dict[str, Json] = {"type": kind}
    if body.get("call_id") is not None:
        said["call_id"] = body["call_id"]
    if kind == EventType.TOOL_CALL:
        said |= {"tool": body.get("tool"), "arguments": arguments_object(body.get("arguments"))}
        return _text(said)
    if body.get("is_error"):
        said["is_error"] = True
    head = (body.get("native") or {}).get("head") or {}
    content = body.get("content")
    said["content"] = _parts(content if content is not None else head.get("refusal"))
    if isinstance(audio := head.get("audio"), Mapping):
        said["audio"] = audio.get("id")
    if head.get("function_call"):
        said["function_call"] = head["function_call"]
    if kind == EventType.ASSISTANT_MESSAGE and len(said) == 2 and not said["content"]:
        return None
    return _text(said)


def prompt_said(content: Json) -> bytes:
    """What a system prompt says, in a form that two ways to write the same share."""
    return _text(_parts(content))


def tools_said(definitions: Iterable[Json]) -> bytes:
    """The same of tool definitions."""
    return _text([_cleaned(definition) for definition in definitions])


def _text(value: Json) -> bytes:
    try:
        return _encode(value).encode()
    except (ValueError, TypeError):  # keys of several types do not come out of JSON
        return canonical_json(value).encode("utf-8", "surrogatepass")


def _parts(content: Json) -> list[Json]:
    """Content as parts; text is a part of text, and blank text is nothing."""
    if not isinstance(content, list):
        content = [] if content is None else [{"type": "text", "text": content}]
    return [said for part in content if (said := _part(part)) is not None]


def _part(part: Json) -> Json:
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type")
    if kind in REASONING_PARTS:
        return None
    text = part.get("refusal") if kind == "refusal" else part.get("text") if kind in TEXT_PARTS else None
    if isinstance(text, str):
        return text if text.strip() else None
    return {name: _cleaned(child) for name, child in part.items() if child is not None and name not in _SDK_ONLY}


def _cleaned(value: Json) -> Json:
    """A value without nulls and cache markers."""
    if isinstance(value, Mapping):
        kept = ((name, child) for name, child in value.items() if child is not None and name != "cache_control")
        return {name: _cleaned(child) for name, child in kept}
    return [_cleaned(child) for child in value] if isinstance(value, list) else value
