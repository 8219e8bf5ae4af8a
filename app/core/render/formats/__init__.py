"""Provider formats: one module each, which both reads and writes it, so that both directions are lossless.

A client that writes a log again (an import, a move to another server) sends events with the `native` that it read. It
is accepted if the format's reader makes that event of some message, so that such a log holds nothing that could not
have come as messages: `rebuild` is the inverse of the readers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Literal

from app.core.errors import InvalidEvent, InvalidMessage, InvalidRequest
from app.core.log.event import content_text
from app.core.log.events import Draft, EventType, Json, check_values
from app.core.render.formats import anthropic, gemini, layout, openai_chat, openai_responses
from app.core.render.formats.gemini import JSON_RESPONSE, own_response
from app.core.render.formats.layout import Layout, Writer
from app.core.render.formats.tools import NativeFormat
from app.core.tokens.models import ANTHROPIC, UNKNOWN_CACHE, CacheProfile

FormatName = Literal[NativeFormat, "blocks"]


def _no_messages(_: Sequence[Any]) -> list[list[dict[str, Json]]]:
    raise InvalidRequest("blocks is no provider's format: post events instead", field="format")


@dataclass(frozen=True, slots=True)
class Format:
    """A format. `writer` begins a request with a layout's prefix; `reader` returns the neutral events of each message.

    One that is not `native` is no provider's: it has no messages to read, and takes every layout as it is.
    """

    name: FormatName
    writer: Callable[[Layout], Writer]
    reader: Callable[[Sequence[Any]], list[list[dict[str, Json]]]] = _no_messages
    sdk_only: frozenset[str] = frozenset()
    """Fields that the SDK's responses have and requests may not have."""
    keeps_nulls: bool = False
    """Whether fields that are null are sent back unchanged."""
    calls_last: bool = False
    """Whether a message holds its text before its calls (`fit.split_rounds`)."""
    independent_messages: bool = False
    """Whether messages are read independently, except that system messages before all others are prompts."""
    marked: bool = False
    """Whether cache breakpoints are written into the request."""
    excludes_cached_tokens: bool = False
    """Whether reported input tokens do not include cache reads and writes."""
    cache: CacheProfile = UNKNOWN_CACHE
    """The profile assumed for the cache of an unknown model."""
    native: bool = True

    def read(self, messages: Sequence[Any]) -> list[dict[str, Json]]:
        """Read a provider's own messages into neutral events. Raises InvalidMessage."""
        return list(chain.from_iterable(self.reader(messages)))


FORMATS: Final[Mapping[str, Format]] = {
    form.name: form
    for form in (
        Format(
            openai_chat.NAME,
            openai_chat.ChatWriter,
            openai_chat.read,
            sdk_only=frozenset({"parsed", "parsed_arguments", "annotations", "index"}),
            keeps_nulls=True,
            calls_last=True,
            independent_messages=True,
        ),
        Format(
            openai_responses.NAME,
            openai_responses.ResponsesWriter,
            openai_responses.read,
            sdk_only=frozenset({"parsed", "parsed_arguments", "async_", "created_by"}),
        ),
        Format(
            anthropic.NAME,
            anthropic.AnthropicWriter,
            anthropic.read,
            independent_messages=True,
            sdk_only=frozenset({"parsed_output", "from_"}),
            marked=True,
            excludes_cached_tokens=True,
            cache=ANTHROPIC,
        ),
        Format(
            gemini.NAME,
            gemini.GeminiWriter,
            gemini.read,
            sdk_only=frozenset({"audioTranscription", "audio_transcription"}),
        ),
        Format(layout.NAME, layout.BlocksWriter, native=False),
    )
}


_FIELDS: Final = frozenset({"format", "head", "part", "call_id"})
_CALLS: Final = frozenset({EventType.TOOL_CALL, EventType.TOOL_RESULT})
_INNER: Final = {
    openai_chat.NAME: frozenset({"call", "custom", "function"}),
    openai_responses.NAME: frozenset({"item"}),
    gemini.NAME: frozenset({"part", "inner"}),
}
"""Fields of `part` that hold an object."""
_ROLES: Final = {
    EventType.SYSTEM_PROMPT: "system",
    EventType.SYSTEM_MESSAGE: "system",
    EventType.USER_MESSAGE: "user",
    EventType.ASSISTANT_MESSAGE: "assistant",
}
_BEFORE: Final = {"role": "user", "content": "."}
"""A message placed before a system message, so that it is not read as the system prompt."""

_Object = dict[str, Json]


def check_native(draft: Draft, index: int) -> None:
    """Raise InvalidEvent unless the draft has the `native` that its format's reader makes of a message."""
    if not _is_readable(draft, draft.native or {}):
        detail = "native: the event is not what its format makes of a message; leave native out, or post messages"
        raise InvalidEvent(detail, index=index, field="native")


def _is_readable(draft: Draft, native: Mapping[str, Json]) -> bool:
    form = native.get("format")
    if not isinstance(form, str) or form not in _MESSAGES or not _has_shape(form, native):
        return False
    if "call_id" in native:
        # The log gave the call another id than the client (`core/log/conversation`); the client's is compared.
        if draft.type not in _CALLS or not isinstance(native["call_id"], str):
            return False
        native = dict(native)
        draft = replace(draft, call_id=native.pop("call_id"), native=native)
    if form == gemini.NAME and native.get("part", {}).get("no_id") is True:
        # The reader numbers a call without an id within its content; alone, it is compared as if it had one.
        if draft.type is EventType.TOOL_CALL and not re.fullmatch(
            rf"{re.escape(str(draft.tool))}#\d+", str(draft.call_id)
        ):
            return False
        kept = {name: value for name, value in native["part"].items() if name != "no_id"}
        native = {**{n: v for n, v in native.items() if n != "part"}, **({"part": kept} if kept else {})}
        draft = replace(draft, native=native)
    message = _MESSAGES[form](draft, native.get("head", {}), native.get("part", {}))
    if message is None:
        return False
    before = [*_referenced_call(draft, message), *([_BEFORE] if draft.type is EventType.SYSTEM_MESSAGE else ())]
    try:
        read = FORMATS[form].read([*before, message])[len(before) :]
    except InvalidMessage:
        return False
    return len(read) == 1 and _set_fields(read[0], head="head" in native) == _set_fields(
        _reader_fields(draft), head=True
    )


def _has_shape(form: str, native: Mapping[str, Json]) -> bool:
    """Return whether fields are of the types that the reconstruction needs; the reader checks the rest."""
    if not _FIELDS.issuperset(native):
        return False
    part = native.get("part", {})
    if not isinstance(native.get("head", {}), Mapping) or not isinstance(part, Mapping):
        return False
    if not isinstance(part.get("key", ""), str):
        return False
    inner = (part[name] for name in _INNER.get(form, ()) if name in part)
    return all(isinstance(value, Mapping) or value is True for value in inner)


def _reader_fields(draft: Draft) -> _Object:
    """Return the fields of an event that a reader sets."""
    names = ("content", "call_id", "tool", "arguments", "is_error", "native")
    return {"type": draft.type} | {name: getattr(draft, name) for name in names}


def _set_fields(event: Mapping[str, Json], *, head: bool) -> _Object:
    """Return the fields that are set; without `head`, those of an event that does not begin its message."""
    fields = {name: value for name, value in event.items() if value is not None}
    if not head:
        fields["native"] = {name: value for name, value in fields["native"].items() if name != "head"}
    return fields


def _content(draft: Draft) -> _Object:
    return {"content": draft.content}


def _chat(draft: Draft, head: _Object, part: _Object) -> _Object | None:
    if draft.type is EventType.TOOL_RESULT:
        return {"role": "tool", "tool_call_id": draft.call_id, **_content(draft), **head}
    if draft.type is EventType.TOOL_CALL:
        call = _chat_call(draft, part)
        return None if call is None else {"role": "assistant", **head, "tool_calls": [call]}
    if draft.type is EventType.ASSISTANT_MESSAGE and draft.content is None:
        return {"role": "assistant", **head}
    return {"role": _ROLES.get(draft.type), **_content(draft), **head}


def _chat_call(draft: Draft, part: _Object) -> _Object | None:
    extra, custom, function = part.get("call", {}), part.get("custom"), part.get("function", {})
    if extra is True or custom is True or function is True:
        return None
    if custom is not None:
        inner = {"name": draft.tool, "input": _input(draft), **custom}
        return {"id": draft.call_id, "type": "custom", **extra, "custom": inner}
    inner = {"name": draft.tool, **_set(arguments=draft.arguments), **function}
    return {"id": draft.call_id, **({} if part.get("untyped") else {"type": "function"}), **extra, "function": inner}


def _anthropic(draft: Draft, head: _Object, part: _Object) -> _Object | None:
    if draft.type is EventType.TOOL_CALL:
        use = {"type": "tool_use", "id": draft.call_id, "name": draft.tool, **_set(input=draft.arguments), **part}
        return {"role": "assistant", "content": [use], **head}
    if draft.type is EventType.TOOL_RESULT:
        fields = _set(content=draft.content, is_error=draft.is_error)
        return {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": draft.call_id, **fields, **part}],
            **head,
        }
    return {"role": _ROLES.get(draft.type), **_content(draft), **head}


def _responses(draft: Draft, head: _Object, part: _Object) -> _Object | None:
    item = part.get("item", {})
    if draft.type is EventType.TOOL_CALL:
        return None if item is True else _responses_call(draft, item)
    if draft.type is EventType.TOOL_RESULT:
        return None if item is True else _responses_result(draft, item, part)
    if item is True:
        content = draft.content
        return dict(content[0]) if isinstance(content, list) and len(content) == 1 else None
    return {"role": _ROLES.get(draft.type), **head, **_content(draft)}


def _responses_call(draft: Draft, item: _Object) -> _Object:
    kind = item.get("type", "function_call")
    if kind == "function_call":
        fields = {"name": draft.tool, **_set(arguments=draft.arguments)}
    elif kind == "custom_tool_call":
        fields = {"name": draft.tool, "input": _input(draft)}
    else:
        fields = dict(draft.arguments) if isinstance(draft.arguments, Mapping) else {}
    return {"type": kind, **fields, "call_id": draft.call_id, **item}


def _responses_result(draft: Draft, item: _Object, part: _Object) -> _Object:
    output: _Object = {"type": "function_call_output", **item}
    if not part.get(openai_responses.BY_ID):
        output["call_id"] = draft.call_id
    content = draft.content
    if part.get("single") and isinstance(content, list) and content:
        output["output"] = content[0]
    elif content is not None or output["type"] in ("function_call_output", "custom_tool_call_output"):
        output["output"] = content
    return output


def _gemini(draft: Draft, head: _Object, part: _Object) -> _Object | None:
    extra, inner, content = part.get("part", {}), part.get("inner", {}), draft.content
    if extra is True or inner is True:
        return None
    if draft.type is EventType.TOOL_CALL:
        args = {} if part.get("no_args") else {"args": draft.arguments}
        call = {"id": draft.call_id, "name": draft.tool, **args, **inner}
        return {"role": "model", "parts": [{part.get("key", gemini.CALLS[0]): call, **extra}], **head}
    if draft.type is EventType.TOOL_RESULT:
        try:
            if part.get("response") == JSON_RESPONSE:
                check_values(content_text(content))
            response = own_response(content, part)
        except (ValueError, TypeError, AttributeError, IndexError):
            return None
        answer = {"id": draft.call_id, "name": "any", **response, **inner}
        return {"role": "user", "parts": [{part.get("key", gemini.RESPONSES[0]): answer, **extra}], **head}
    if not isinstance(content, list):
        return None
    role = "model" if draft.type is EventType.ASSISTANT_MESSAGE else _ROLES.get(draft.type)
    return {"role": role, "parts": [gemini.untyped(one) for one in content], **head}


def _referenced_call(draft: Draft, message: _Object) -> list[_Object]:
    """Return the call of an output that refers to it by the id of its item."""
    if message.get("type") != openai_responses.LOCAL_SHELL_OUTPUT or "call_id" in message:
        return []
    return [{"type": "local_shell_call", "id": message.get("id"), "call_id": draft.call_id}]


def _input(draft: Draft) -> Json:
    return draft.arguments.get("input") if isinstance(draft.arguments, Mapping) else None


def _set(**fields: Json) -> _Object:
    return {name: value for name, value in fields.items() if value is not None}


_MESSAGES: Final[Mapping[str, Callable[[Draft, _Object, _Object], _Object | None]]] = {
    openai_chat.NAME: _chat,
    openai_responses.NAME: _responses,
    anthropic.NAME: _anthropic,
    gemini.NAME: _gemini,
}
