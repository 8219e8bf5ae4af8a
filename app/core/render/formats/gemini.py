"""Gemini's contents: `{"systemInstruction"?, "contents": [...], "tools"?}`, as `generateContent` takes them.

Lossless except for content that the provider would refuse, and for nulls, which only an SDK sets. A content with the
role `system` represents the system instruction, which the API keeps outside the contents.

Parts are kept verbatim with a `type` that names their kind for other formats and the counter: it follows from the name
of the field that holds the data. Names are read in the API's notation (`inlineData`) and in that of its Python SDK
(`inline_data`), and each part is sent back in its own.
"""

import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from app.core.errors import InvalidMessage
from app.core.log.event import Block, Kind
from app.core.log.events import Json, Part, arguments_object, canonical_json
from app.core.render.formats import parts as shared
from app.core.render.formats.layout import Layout, MessageWriter, framed, sendable
from app.core.render.formats.parts import Image, Piece, Text
from app.core.render.formats.tools import dotted_name, tool_names, write_tools

NAME: Final = "gemini"
CALLS: Final = ("functionCall", "function_call")
RESPONSES: Final = ("functionResponse", "function_response")
SIGNATURES: Final = ("thoughtSignature", "thought_signature")
UNKNOWN: Final = "part"
"""The type of a part that holds nothing known, or has a `type` of its own."""
_DATA: Final = frozenset(
    {"inlineData", "inline_data", "fileData", "file_data", "executableCode", "executable_code"}
    | {"codeExecutionResult", "code_execution_result", "toolCall", "tool_call", "toolResponse", "tool_response"}
)
ROLES: Final = ("system", "model", "user", "function", "tool")
"""The last two are other names for the user's role when it has results."""
UNSIGNED: Final = "skip_thought_signature_validator"
"""The signature that the provider's documentation prescribes for a call that another model made; since Gemini 3 a call
without any is refused."""
JSON_RESPONSE: Final = "json"
_TEXTS: Final = ("output", "result", "error")
"""Fields that hold the text of a function's response if it has no other field."""


def read(messages: Sequence[Any]) -> list[list[dict[str, Json]]]:
    """Read contents into the neutral events of each. Raises InvalidMessage."""
    events: list[list[dict[str, Json]]] = []
    prompts = shared.leading(messages, ("system",))
    waiting: dict[str, deque[str]] = {}
    for index, raw in enumerate(messages):
        message = shared.message_object(raw, index)
        role = shared.role_field(message, index, ROLES, default="user")
        parts = read_parts(message, index)
        head = shared.without(present(message), "parts", "role")
        if role == "system":
            events.append([shared.prompt_event(NAME, list(map(typed, parts)), head, prompt=index < prompts)])
        elif role == "model":
            read_call = partial(_read_call, index=index, waiting=waiting)
            events.append(_read_content("assistant.message", head, parts, CALLS, read_call))
        else:
            # The provider requires responses first.
            parts.sort(key=lambda part: key_of(part, RESPONSES) is None)
            read_result = partial(_read_result, index=index, waiting=waiting)
            events.append(_read_content("user.message", head, parts, RESPONSES, read_result))
    return events


def _read_content(
    kind: str, head: Mapping[str, Json], parts: Sequence[Part], special: Sequence[str], read_special: Any
) -> list[dict[str, Json]]:
    counts: Counter[str] = Counter()

    def read_part(part: Part) -> dict[str, Json] | None:
        key = key_of(part, special)
        return None if key is None else read_special(part, key, counts=counts)

    events = shared.message_events(NAME, kind, head, parts, read_part)
    for event in events:
        if event["type"] == kind:
            event["content"] = list(map(typed, event["content"]))
    return events


def _read_call(
    part: Part, key: str, *, index: int, waiting: dict[str, deque[str]], counts: Counter[str]
) -> dict[str, Json]:
    call = present(shared.message_object(part[key], index, key))
    name, call_id = shared.text_field(call, "name", index), call.get("id")
    kept: dict[str, Json] = {}
    if not isinstance(call_id, str) or not call_id:
        call_id = _numbered(name, counts)
        kept["no_id"] = True
    if "args" not in call:
        kept["no_args"] = True
    waiting.setdefault(name, deque()).append(call_id)
    kept |= _other_fields(part, key, call, "id", "name", "args")
    return shared.call_event(call_id, name, call.get("args", {}), native_part=kept)


def _read_result(
    part: Part, key: str, *, index: int, waiting: dict[str, deque[str]], counts: Counter[str]
) -> dict[str, Json]:
    found = present(shared.message_object(part[key], index, key))
    name, call_id = shared.text_field(found, "name", index), found.get("id")
    open_calls = waiting.get(name, deque())
    kept: dict[str, Json] = {}
    if isinstance(call_id, str) and call_id:
        if call_id in open_calls:
            open_calls.remove(call_id)
    else:
        # The API pairs responses without ids with the calls of their name, in order.
        call_id = open_calls.popleft() if open_calls else _numbered(name, counts)
        kept["no_id"] = True
    event = shared.result_event(call_id)
    text = None
    if "response" in found:
        response = shared.message_object(found["response"], index, "response")
        shape = next(
            (one for one in _TEXTS if response.keys() == {one} and isinstance(response[one], str)), JSON_RESPONSE
        )
        text = _json_text(response, index) if shape == JSON_RESPONSE else response[shape]
        kept["response"] = shape
        if shape == "error":
            event["is_error"] = True
    media = found.get("parts")
    if media is None:
        event["content"] = text
    elif isinstance(media, list):
        shown = [] if text is None else [shared.text_part(text)]
        event["content"] = [*shown, *(typed(present(shared.message_object(one, index, "parts"))) for one in media)]
        kept["media"] = True
    else:
        raise InvalidMessage("parts must be a list of parts", index=index, field="parts")
    event["native_part"] = kept | _other_fields(part, key, found, "id", "name", "response", "parts")
    return event


def _json_text(response: Mapping[str, Json], index: int) -> str:
    try:
        return canonical_json(response)
    except ValueError:
        raise InvalidMessage("a number is not finite", index=index, field="response") from None


def _numbered(name: str, counts: Counter[str]) -> str:
    """Return the id for a call without one: its name, and its number among the calls of that name in its content."""
    counts[name] += 1
    return f"{name}#{counts[name]}"


def _other_fields(part: Part, key: str, inner: Mapping[str, Json], *known: str) -> dict[str, Json]:
    """Return the fields of a part other than the known ones of its call or response, above all a signature."""
    kept: dict[str, Json] = {}
    if extra := shared.without(part, key):
        kept["part"] = extra
    if more := shared.without(inner, *known):
        kept["inner"] = more
    if "_" in key:
        kept["key"] = key
    return kept


@dataclass(slots=True)
class _Content:
    role: str
    fields: Mapping[str, Json]
    parts: list[Part] = field(default_factory=list)
    calls: int = 0

    def copy(self) -> "_Content":
        """Return an independent copy."""
        return replace(self, parts=self.parts.copy())

    def text(self) -> bytes:
        """Return the content as JSON."""
        return sendable({"role": self.role, "parts": self.parts, **self.fields})


class GeminiWriter(MessageWriter):
    """Writes contents as the provider accepts them: the first is the user's, none is empty, no two of the model are
    adjacent, and one with calls precedes one that begins with their responses. The provider caches automatically."""

    _newest: _Content | None

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        system = [part for block in layout.system for part in _system_parts(block)]
        tools = write_tools(layout.tools, NAME)
        self.frame = framed({"systemInstruction": system and {"parts": system}}, "contents", {"tools": tools})
        self._names = tool_names(layout.tools, dotted_name)
        self._waiting: dict[str, tuple[tuple[str | None, str], ...]] = {}
        """The id in the request, or None, and the name of each call without a response."""

    def _attributes(self) -> dict[str, Any]:
        newest = self._newest and self._newest.copy()
        return {**super()._attributes(), "_newest": newest, "_waiting": self._waiting.copy()}

    def _open(self) -> None:
        self.texts.append(sendable({"role": "user", "parts": [text_part(shared.BEGINNING)]}))

    def _say(self, block: Block) -> None:
        self._put(block, "model", message_parts(block))

    def _plain(self, block: Block) -> None:
        if block.kind is Kind.SYSTEM:
            text = "\n".join(part["text"] for part in _system_parts(block))
            self._put(block, "user", [text_part(shared.system_text(text))])
        else:
            self._put(block, "user", message_parts(block))

    def _show(self, pieces: Sequence[Piece]) -> None:
        self._begin(_Content("user", {}, [piece_part(piece) for piece in pieces]))

    def _settle(self) -> None:
        if self._newest is not None and self._newest.parts:
            if not self.texts and self._newest.role == "model":
                self._open()
            self.texts.append(self._newest.text())
        self._newest = None

    def _put(self, block: Block, role: str, parts: Sequence[Part], *, joins: bool = False) -> _Content:
        """Add parts to the current content, or to a new one at a change of role or a user's content of this format."""
        head = shared.native_of(block, NAME).get("head")
        content = self._newest
        if content is None or content.role != role or (role == "user" and head is not None and not joins):
            content = _Content(role, head or {})
            self._begin(content)
        content.parts += parts
        return content

    def _call(self, block: Block) -> None:
        own = shared.is_own(block, NAME)
        kept = shared.native_of(block, NAME).get("part", {}) if own else {}
        name = dotted_name(block.tool, self._names)
        call_id = None if own and kept.get("no_id") else block.call_id
        call: dict[str, Json] = {} if call_id is None else {"id": call_id}
        call["name"] = name
        if not (own and kept.get("no_args")):
            verbatim = own and isinstance(block.arguments, Mapping)
            call["args"] = block.arguments if verbatim else arguments_object(block.arguments)
        content = self._put(block, "model", [])
        extra = kept.get("part", {}) if own else {} if content.calls else {"thoughtSignature": UNSIGNED}
        content.parts.append({kept.get("key", CALLS[0]): {**call, **kept.get("inner", {})}, **extra})
        content.calls += 1
        key = block.call_id or ""
        self._waiting[key] = (*self._waiting.get(key, ()), (call_id, name))

    def _result(self, block: Block) -> None:
        own = shared.is_own(block, NAME)
        kept = shared.native_of(block, NAME).get("part", {}) if own else {}
        (call_id, name), *rest = self._waiting.pop(block.call_id or "", ((block.call_id, dotted_name(block.tool)),))
        if rest:
            self._waiting[block.call_id or ""] = tuple(rest)
        if own and kept.get("no_id"):
            call_id = None
        answer: dict[str, Json] = {} if call_id is None else {"id": call_id}
        answer["name"] = name
        answer |= {"response": {}, **own_response(block.content, kept)} if own else self._response(block)
        part: Part = {kept.get("key", RESPONSES[0]): {**answer, **kept.get("inner", {})}, **kept.get("part", {})}
        self._put(block, "user", [part], joins=True)

    def _response(self, block: Block) -> Mapping[str, Json]:
        """Return the response of another format's result, whose images follow the round."""
        self._images += tuple(piece for piece in shared.pieces(block.content) if isinstance(piece, Image))
        text = shared.plain_text(block.content) or shared.NO_OUTPUT
        return {"response": {"error" if block.is_error and not block.replaced else "output": text}}


def own_response(content: str | Sequence[Part] | None, kept: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the original response of a result that came in this format; `kept` is stored with its event."""
    shape = kept.get("response")
    parts = list(content) if isinstance(content, list) else []
    media = {"parts": [untyped(part) for part in (parts[1:] if shape else parts)]} if kept.get("media") else {}
    text = parts[0].get("text") if shape and parts else content
    if shape is None:
        return media
    if shape == JSON_RESPONSE:
        return {"response": json.loads(str(text)), **media}
    return {"response": {str(shape): text}, **media}


def _system_parts(block: Block) -> list[Part]:
    """Return a system prompt's parts, texts only and never empty."""
    if shared.is_own(block, NAME) and isinstance(block.content, list):
        shown = own_parts(block.content)
        if shown and all(isinstance(part.get("text"), str) for part in shown):
            return shown
    return [text_part(shared.plain_text(block.content) or shared.EMPTY)]


def read_parts(message: Mapping[str, Json], index: int) -> list[dict[str, Json]]:
    """Return the parts of a content, without the nulls that an SDK sets. Raises InvalidMessage."""
    found = message.get("parts")
    if found is None:
        return []
    if not isinstance(found, list):
        raise InvalidMessage("parts must be a list of parts", index=index, field="parts")
    return [present(shared.message_object(part, index, "parts")) for part in found]


def present(value: Mapping[str, Json]) -> dict[str, Json]:
    """Return an object without its nulls."""
    return {name: child for name, child in value.items() if child is not None}


def key_of(part: Part, names: Sequence[str]) -> str | None:
    """Return the first of `names` that is a field of the part; None if none is."""
    return next((name for name in names if name in part), None)


def typed(part: Part) -> Part:
    """Return a part as an event holds it: with the type of its data."""
    if "type" in part:
        return {"type": UNKNOWN, "part": part}
    kind = next((name for name in part if name in _DATA), UNKNOWN)
    if isinstance(part.get("text"), str):
        kind = "reasoning" if part.get("thought") is True else "text"
    return {"type": kind, **part}


def untyped(part: Part) -> Part:
    """Return a part as the provider defines it."""
    if part.get("type") == UNKNOWN and isinstance(part.get("part"), Mapping):
        inner: Part = part["part"]
        return inner
    return shared.without(part, "type")


def own_parts(content: Sequence[Part]) -> list[Part]:
    """Return the parts of this format's content, without empty parts and blank texts that carry no signature."""
    return [shown for part in content if (shown := untyped(part)) and not _is_blank(shown)]


def _is_blank(part: Part) -> bool:
    text = part.get("text")
    return isinstance(text, str) and not text.strip() and key_of(part, SIGNATURES) is None


def message_parts(block: Block) -> list[Part]:
    """Return a message's parts; empty only for reasoning of another provider."""
    if shared.is_own(block, NAME) and isinstance(block.content, list):
        return own_parts(block.content) or [text_part(shared.EMPTY)]
    content = shared.content_or_refusal(block)
    if block.kind is Kind.ASSISTANT:  # of other providers' content, only text may be the model's
        text = shared.plain_text(content)
        return [text_part(text)] if text else [] if shared.is_only_reasoning(content) else [text_part(shared.EMPTY)]
    return [piece_part(piece) for piece in shared.pieces(content)] or [text_part(shared.EMPTY)]


def text_part(text: str) -> Part:
    """Return a text part."""
    return {"text": text}


def piece_part(piece: Piece) -> Part:
    """Return a piece of another format's content in this provider's shape."""
    if isinstance(piece, Text):
        return text_part(piece.text)
    if isinstance(piece, Image):
        return _held(piece.media_type, piece.data, piece.url)
    return text_part(piece.text) if piece.text is not None else _held(piece.media_type, piece.data, piece.url)


def _held(media_type: str, data: str | None, url: str | None) -> Part:
    if data is not None:
        return {"inlineData": {"mimeType": media_type, "data": data}}
    return {"fileData": {"mimeType": media_type, "fileUri": url}}
