"""Code that the formats share: reading of messages, and content in a form that any of them can write."""

import base64
import binascii
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.errors import InvalidMessage
from app.core.log.event import BLOB_PARTS, IMAGE_PARTS, REASONING_PARTS, TEXT_PARTS, Block
from app.core.log.events import Json, Part, arguments_object, canonical_json, read_arguments

SYSTEM_ROLES: Final = ("system", "developer")


def message_object(message: Json, index: int, field: str = "") -> Mapping[str, Json]:
    """Return the message, or its `field`, as an object. Raises InvalidMessage."""
    if not isinstance(message, Mapping):
        what = field or "a message"
        raise InvalidMessage(f"{what} must be a JSON object", index=index, field=field)
    return message


def leading(messages: Sequence[Json], roles: Collection[str]) -> int:
    """Return the number of messages before the first whose role is not among `roles`."""
    count = 0
    for message in messages:
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str) or role not in roles:
            break
        count += 1
    return count


def role_field(message: Mapping[str, Json], index: int, roles: Collection[str], default: str | None = None) -> str:
    """Return the role of a message, one of `roles`. Raises InvalidMessage."""
    role = message.get("role") or default
    if not isinstance(role, str) or role not in roles:
        raise InvalidMessage(f"unknown role {role!r}", index=index, field="role")
    return role


def text_field(value: Mapping[str, Json], name: str, index: int, *, may_be_empty: bool = False) -> str:
    """Return a field that must be a string, not an empty one unless it may be. Raises InvalidMessage."""
    found = value.get(name)
    if not isinstance(found, str) or not (found or may_be_empty):
        raise InvalidMessage(f"{name} must be text", index=index, field=name)
    return found


def content_field(
    value: Mapping[str, Json], index: int, name: str = "content"
) -> str | Sequence[Mapping[str, Json]] | None:
    """Return a content field: text, a list of parts of any type, or None if it is null. Raises InvalidMessage."""
    found = value.get(name)
    if isinstance(found, str) or (found is None and name in value):
        return found
    if not isinstance(found, list):
        raise InvalidMessage(f"{name} must be text or a list of parts", index=index, field=name)
    for part in found:
        if not isinstance(part, Mapping) or not isinstance(part.get("type", ""), str):
            raise InvalidMessage(f"every part of {name} must be an object, its type a text", index=index, field=name)
    return found


def prompt_event(form: str, content: Json, head: Mapping[str, Json], *, prompt: bool) -> dict[str, Json]:
    """Return the event of a system message: one of the leading ones is the system `prompt`."""
    return message_event(form, "system.prompt" if prompt else "system.message", content, head)


def message_event(form: str, kind: str, content: Json, head: Mapping[str, Json]) -> dict[str, Json]:
    """Return the event of a message that is one event; `head` has the message's other fields."""
    return {"type": kind, "content": content, "native": native(form, head=head)}


def call_event(call_id: str, tool: str, arguments: Json, **kept: Json) -> dict[str, Json]:
    """Return the event of a tool call; `kept` is its `native`, or the `native_part` that `message_events` takes."""
    return {"type": "tool.call", "call_id": call_id, "tool": tool, "arguments": arguments, **kept}


def result_event(call_id: str, **fields: Json) -> dict[str, Json]:
    """Return the event of a tool result with these fields."""
    return {"type": "tool.result", "call_id": call_id, **fields}


def message_events(
    form: str,
    kind: str,
    head: Mapping[str, Json],
    parts: Iterable[Part],
    read_special: Callable[[Part], dict[str, Json] | None],
) -> list[dict[str, Json]]:
    """Return one event for each run of ordinary parts of a message, and one for each call or result in it.

    `read_special` returns the event of a call or a result, with its extra fields as `native_part`, and None for an
    ordinary part.
    """
    events: list[dict[str, Json]] = []
    run: list[Part] = []
    for part in parts:
        special = read_special(part)
        if special is None:
            run.append(part)
            continue
        if run:
            events.append({"type": kind, "content": run})
            run = []
        events.append(special)
    if run or not events:
        events.append({"type": kind, "content": run})
    for number, event in enumerate(events):
        event["native"] = native(form, head=head if number == 0 else None, part=event.pop("native_part", None))
    return events


EMPTY: Final = "(empty)"
NO_OUTPUT: Final = "(no output)"
BEGINNING: Final = "(The conversation begins.)"
"""The first message of a request that would be empty, or would begin with a message that cannot be first."""
IMAGES_ABOVE: Final = "Images from the tool results above:"
FILE_PARTS: Final = frozenset({"file", "input_file", "document"})
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Image types that every provider accepts; an image of another type is only named."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not blank."""

    text: str


def text_part(text: str) -> dict[str, Json]:
    """Return a text as a part of an event's content, and of messages of OpenAI's chat completions and Anthropic."""
    return {"type": "text", "text": text}


@dataclass(frozen=True, slots=True)
class Image:
    """An image by `url`, or as base64 `data` of a `media_type`."""

    url: str | None
    data: str | None
    media_type: str
    detail: str | None = None

    @property
    def any_url(self) -> str:
        """The URL, or a data URL of the image."""
        return self.url or f"data:{self.media_type};base64,{self.data}"


@dataclass(frozen=True, slots=True)
class File:
    """A document as base64 `data`, by `url`, or as plain `text`."""

    name: str
    media_type: str
    data: str | None = None
    url: str | None = None
    text: str | None = None


Piece = Text | Image | File


def pieces(content: str | Sequence[Part] | None) -> list[Piece]:
    """Return the pieces of content, without blank texts and reasoning; a part of an unknown type is named as text."""
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)] if content.strip() else []
    found = (_piece(part) for part in content if part.get("type") not in REASONING_PARTS)
    return [piece for piece in found if not (isinstance(piece, Text) and not piece.text.strip())]


def plain_text(content: str | Sequence[Part] | None) -> str:
    """Return the text of content; images and files are named."""
    if isinstance(content, str):
        return content if content.strip() else ""
    return "\n".join(piece_text(piece) for piece in pieces(content))


def piece_text(piece: Piece) -> str:
    """Return a text piece's text, or the name of any other piece."""
    if isinstance(piece, Text):
        return piece.text
    return "[image]" if isinstance(piece, Image) else f"[file {piece.name}]"


def non_blank(content: Sequence[Part]) -> list[Part]:
    """Return the parts without blank texts."""
    return [
        p for p in content if p.get("type") not in TEXT_PARTS or (isinstance(p.get("text"), str) and p["text"].strip())
    ]


def is_blank(content: str | Sequence[Part] | None) -> bool:
    """Return whether content is nothing but blank text."""
    return not content or not (content.strip() if isinstance(content, str) else non_blank(content))


def native_of(block: Block, form: str) -> Mapping[str, Json]:
    """Return what only this format can express of a block, its message's `head` and its own `part`; {} for others."""
    return block.native if block.native is not None and block.native.get("format") == form else {}


def is_own(block: Block, form: str) -> bool:
    """Return whether the block came in this format and is shown as it came."""
    return block.native is not None and block.native.get("format") == form and not block.replaced


def content_or_refusal(block: Block) -> str | Sequence[Part] | None:
    """Return a block's content; if it has none, the refusal that a chat message holds instead."""
    if block.content is not None or block.native is None:
        return block.content
    refusal = block.native.get("head", {}).get("refusal")
    return refusal if isinstance(refusal, str) else None


def is_only_reasoning(content: str | Sequence[Part] | None) -> bool:
    """Return whether content consists of reasoning and blanks, so that other providers get nothing of it."""
    return not isinstance(content, str) and bool(content) and not pieces(content)


def arguments_text(block: Block, form: str) -> str:
    """Return a call's arguments as text: as they came in this format, else as the JSON of an object."""
    arguments = block.arguments
    if not isinstance(arguments, str):
        return canonical_json(arguments_object(arguments))
    if is_own(block, form):
        return arguments
    value, strict = read_arguments(arguments)
    return arguments if strict else canonical_json(value)


def custom_input(arguments: Json) -> Json:
    """Return the input of a custom tool's call, which is not an object, from its arguments."""
    return arguments.get("input", "") if isinstance(arguments, Mapping) else ""


def result_text(block: Block) -> str:
    """Return a result as text, with errors marked, for providers without a field for them."""
    text = plain_text(block.content) or NO_OUTPUT
    return f"[error] {text}" if block.is_error and not block.replaced else text


def system_text(text: str) -> str:
    """Return a system message as a user's text, for providers without such messages in the conversation."""
    return f"<system-message>\n{text}\n</system-message>"


def native(form: str, *, head: Mapping[str, Json] | None = None, part: Mapping[str, Json] | None = None) -> Json:
    """Return the `native` field of an event, which preserves its provider's shape."""
    kept: dict[str, Json] = {"format": form}
    if head is not None:
        kept["head"] = dict(head)
    if part:
        kept["part"] = dict(part)
    return kept


def without(value: Mapping[str, Json], *names: str) -> dict[str, Json]:
    """Return the mapping without these names."""
    return {name: child for name, child in value.items() if name not in names}


def is_opaque(part: Part) -> bool:
    """Return whether only its own provider understands a part; others get only its type and its texts."""
    kind = part.get("type")
    if kind in REASONING_PARTS or (isinstance(part.get("text"), str) and kind in TEXT_PARTS):
        return False
    if kind == "refusal" or isinstance(part.get("stdout"), str):
        return False
    if kind in IMAGE_PARTS:
        return _image(part) is None
    if kind in BLOB_PARTS:
        return _blob(part) is None
    return _file(part) is None if kind in FILE_PARTS else True


def _piece(part: Part) -> Piece:
    kind = part.get("type")
    if isinstance(part.get("text"), str) and kind in TEXT_PARTS:
        return Text(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return Text(part["refusal"])
    if kind in IMAGE_PARTS:
        return _image(part) or Text("[image]")
    if kind in FILE_PARTS:
        return _file(part) or Text(f"[{kind}]")
    if kind in BLOB_PARTS:
        return _blob(part) or Text(f"[{kind}]")
    if isinstance(part.get("stdout"), str):  # one command of a shell call's output
        return Text("\n".join(text for text in (part["stdout"], part.get("stderr")) if isinstance(text, str) and text))
    return Text("\n".join([f"[{kind or 'part'}]", *_inner_texts(part)]))


def _inner_texts(part: Part) -> list[str]:
    """Return the texts in the `content` of a part of an unknown type."""
    inner = part.get("content")
    if isinstance(inner, str):
        return [inner] if inner.strip() else []
    if not isinstance(inner, list):
        return []
    texts = (p["text"] for p in inner if isinstance(p, Mapping) and isinstance(p.get("text"), str))
    return [text for text in texts if text.strip()]


def _blob(part: Part) -> Image | File | None:
    """Return an image or file that a Gemini part holds or refers to by URL."""
    inner = part.get(str(part["type"]))
    if not isinstance(inner, Mapping):
        return None
    media_type = str(inner.get("mimeType", inner.get("mime_type")) or "")
    data, url = inner.get("data"), inner.get("fileUri", inner.get("file_uri"))
    name = str(inner.get("displayName", inner.get("display_name")) or "document")
    if isinstance(data, str) and data:
        if media_type in IMAGE_TYPES:
            return Image(None, data, media_type)
        return _held(name, media_type, data)
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        return Image(url, None, media_type) if media_type in IMAGE_TYPES else File(name, media_type, url=url)
    return None


def _image(part: Part) -> Image | None:
    source = part.get("source")
    if isinstance(source, Mapping):
        url, data = source.get("url"), source.get("data")
        media_type = source.get("media_type")
    else:
        url, data, media_type = part.get("image_url", part.get("url")), part.get("data"), part.get("mime")
    detail = part.get("detail")
    if isinstance(url, Mapping):
        detail = url.get("detail")
        url = url.get("url")
    if isinstance(url, str) and url.startswith("data:") and "," in url:
        kind, data = url.removeprefix("data:").split(",", 1)
        url, media_type = None, kind.split(";", 1)[0]
    media_type = media_type if isinstance(media_type, str) and media_type else "image/png"
    media_type = "image/jpeg" if media_type == "image/jpg" else media_type
    if isinstance(url, str) and url:
        return Image(url, None, media_type, detail if isinstance(detail, str) else None)
    if isinstance(data, str) and data and media_type in IMAGE_TYPES:
        return Image(None, data, media_type, detail if isinstance(detail, str) else None)
    return None


def _file(part: Part) -> File | None:
    inner: Part = part["file"] if isinstance(part.get("file"), Mapping) else part
    source = part.get("source")
    name = str(inner.get("filename") or part.get("title") or "document")
    if isinstance(source, Mapping):
        media_type = str(source.get("media_type") or "application/pdf")
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return File(name, "text/plain", text=source["data"]) if source["data"].strip() else None
        if source.get("type") == "content":
            texts = _inner_texts(source)
            return File(name, "text/plain", text="\n".join(texts)) if texts else None
        if isinstance(source.get("data"), str):
            return _held(name, media_type, source["data"])
        return File(name, media_type, url=source["url"]) if isinstance(source.get("url"), str) else None
    data, url = inner.get("file_data"), inner.get("file_url")
    if isinstance(data, str) and data:
        kind, _, encoded = data.partition(",") if data.startswith("data:") else ("", "", data)
        media_type = kind.removeprefix("data:").split(";", 1)[0] or "application/pdf"
        return _held(name, media_type, encoded)
    return File(name, "application/pdf", url=url) if isinstance(url, str) and url else None


def _held(name: str, media_type: str, data: str) -> File | None:
    """Return a file from base64 data: a PDF or decoded text, which every provider accepts; None for any other type."""
    if media_type == "application/pdf":
        return File(name, media_type, data=data)
    if not media_type.startswith("text/"):
        return None
    try:
        text = base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return File(name, "text/plain", text=text) if text.strip() else None
