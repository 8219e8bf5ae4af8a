"""An independent reader of a request's texts, to check token counts.

It leaves out only the skeleton of known shapes (roles, types, ids, our cache markers, image data), which the documented
overheads of `core/tokens/counter.py` cover. Unknown content is returned as JSON.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from app.core.tokens.counter import TextKind

CountedText = tuple[str, TextKind]

_SKELETON = frozenset({"role", "type", "id", "call_id", "tool_call_id", "tool_use_id", "is_error", "seq", "kind"})
_OF_CONTENTS = ("role", "parts")
_TEXT_TYPES = ("text", "input_text", "output_text", "reasoning", "thinking", "redacted_thinking")
_IMAGE_TYPES = ("image", "image_url", "input_image", "computer_screenshot")
_MARKERS = ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"})


def texts_of(request: Mapping[str, Any]) -> list[CountedText]:
    """Return every text of a request in any format, with its kind."""
    return list(_request(request))


def count_tokens(request: Mapping[str, Any], count: Callable[[str, TextKind], int]) -> int:
    """Return the sum of `count` over a request's texts."""
    return sum(count(text, kind) for text, kind in texts_of(request))


_UNSIGNED = "skip_thought_signature_validator"
"""The placeholder for the signature of a call that another model made."""


def _request(request: Mapping[str, Any]) -> Iterator[CountedText]:
    for name, value in request.items():
        if name in ("system", "instructions"):
            yield from _content(value, TextKind.PROSE)
        elif name == "tools":
            for tool in value:
                for declaration in tool.get("functionDeclarations", [tool]):
                    yield from _tool(declaration)
        elif name in ("systemInstruction", "contents"):
            for content in [value] if isinstance(value, Mapping) else value:
                for part in content["parts"]:
                    yield from _gemini_part(part)
                yield from (
                    (_json(more), TextKind.DATA) for field, more in content.items() if field not in _OF_CONTENTS
                )
        else:
            for message in value:
                yield from _message(message)


def _tool(tool: Mapping[str, Any]) -> Iterator[CountedText]:
    inner = tool.get("function")
    inner = inner if isinstance(inner, Mapping) else {}
    for name, value in {**tool, **inner}.items():
        if name in ("name", "description") and isinstance(value, str):
            yield value, TextKind.DATA
        elif name not in ("type", "function", "cache_control") and value != {"type": "object", "properties": {}}:
            yield _json(value), TextKind.DATA


def _message(message: Mapping[str, Any]) -> Iterator[CountedText]:
    kind = message.get("type", message.get("kind"))
    result = message.get("role") == "tool" or kind == "result" or str(kind).endswith("_output")
    for name, value in message.items():
        if name == "content" and kind == "tools":
            for tool in value:
                yield from _tool(tool)
        elif name in ("content", "output"):
            content = [value] if isinstance(value, Mapping) else value
            yield from _content(content, TextKind.RESULT if result else TextKind.PROSE)
        elif name == "tool_calls":
            for call in value:
                yield from _call(call)
        elif name in ("name", "tool", "arguments", "input") and isinstance(value, str):
            yield value, TextKind.DATA
        elif name not in _SKELETON and value is not None and not (name == "replaced" and value is True):
            yield _json(value), TextKind.DATA


def _call(call: Mapping[str, Any]) -> Iterator[CountedText]:
    for name, value in call.items():
        if name in ("function", "custom"):
            for field, inner in value.items():
                if field not in ("name", "arguments", "input"):
                    yield field, TextKind.DATA
                yield inner if isinstance(inner, str) else _json(inner), TextKind.DATA
        elif name not in ("id", "type"):
            yield _json({name: value}), TextKind.DATA


def _content(content: str | Sequence[Any] | None, kind: TextKind) -> Iterator[CountedText]:
    if isinstance(content, str):
        yield content, kind
    for part in content if isinstance(content, list) else ():
        yield from _part(part, kind) if isinstance(part, Mapping) else [(_json(part), TextKind.DATA)]


def _gemini_part(part: Mapping[str, Any]) -> Iterator[CountedText]:
    rest = {name: value for name, value in part.items() if value != _UNSIGNED}
    call, answer, data = (rest.get(name) for name in ("functionCall", "functionResponse", "inlineData"))
    if isinstance(call, Mapping):
        del rest["functionCall"]
        yield str(call["name"]), TextKind.DATA
        yield _json(call.get("args", {})), TextKind.DATA
        yield from ((_json(value), TextKind.DATA) for name, value in call.items() if name not in ("id", "name", "args"))
    elif isinstance(answer, Mapping):
        del rest["functionResponse"]
        said = answer["response"]
        [text] = said.values() if said.keys() <= {"output", "error", "result"} and len(said) == 1 else [said]
        yield text if isinstance(text, str) else _json(said), TextKind.RESULT
        for inner in answer.get("parts", ()):
            yield from _gemini_part(inner)
        known = ("id", "name", "response", "parts")
        yield from ((_json(value), TextKind.DATA) for name, value in answer.items() if name not in known)
    elif isinstance(data, Mapping) and str(data.get("mimeType")).startswith("image/"):
        del rest["inlineData"]
    elif isinstance(rest.get("text"), str):
        yield str(rest.pop("text")), TextKind.PROSE
    if rest:
        yield _json(rest), TextKind.DATA


def _part(part: Mapping[str, Any], kind: TextKind) -> Iterator[CountedText]:
    what = part.get("type")
    rest = {name: value for name, value in part.items() if name != "cache_control" or value not in _MARKERS}
    if what == "tool_use":
        yield str(part["name"]), TextKind.DATA
        yield _json(part["input"]), TextKind.DATA
        rest = {name: value for name, value in rest.items() if name not in ("type", "id", "name", "input")}
    elif what == "tool_result":
        yield from _content(part.get("content"), TextKind.RESULT)
        known = ("type", "tool_use_id", "content", "is_error")
        rest = {name: value for name, value in rest.items() if name not in known}
    elif what in _IMAGE_TYPES:
        rest = _without_image(rest)
    elif what in _TEXT_TYPES:
        for name in ("text", "thinking", "data"):
            if isinstance(value := rest.get(name), str):
                del rest[name]
                yield value, kind
                break
        del rest["type"]
    if rest:
        yield _json(rest), TextKind.DATA


def _without_image(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an image part other than the image and its description."""
    known = ("type", "media_type", "mime", "detail", "data", "file_id")
    rest: dict[str, Any] = {}
    for name, value in part.items():
        if name in ("source", "image_url") and isinstance(value, dict):
            if inner := _without_image(value):
                rest[name] = inner
        elif name in ("url", "image_url") and isinstance(value, str) and value.startswith("data:"):
            continue
        elif name not in known or not (value is None or isinstance(value, str)):
            rest[name] = value
    return rest


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
