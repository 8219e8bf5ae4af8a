"""JSON documents with one conversation in the messages of OpenAI's chat completions, Anthropic or Gemini."""

from collections.abc import Sequence
from typing import Final

from app.core.log.events import Json
from palimpsest_tools.recordings.checks import require_content, require_object, require_objects, require_string
from palimpsest_tools.recordings.recording import (
    AppendMessages,
    MalformedRecording,
    Object,
    RecordedMessage,
    Recording,
    Step,
    Times,
    weave,
)

_OPENAI_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_ANTHROPIC_ROLES: Final = frozenset({"user", "assistant"})
_ANTHROPIC_PARTS: Final = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "server_tool_use"}
)


def recording(document: Json, id: str) -> Recording:
    """Read a conversation: a list of messages, or a request to the provider with `messages` and optional `system`,
    `tools` and `model` (Gemini: `contents` and `systemInstruction`).

    The format is Anthropic's if anything in it is Anthropic's alone (a top-level `system`, `input_schema`, its part
    types), else OpenAI's; a plain text conversation is the same in both. Raises MalformedRecording.
    """
    outer = {"messages": document} if isinstance(document, list) else require_object(document, "the document")
    if "contents" in outer:
        return _gemini(outer, id)
    messages = require_objects(outer.get("messages"), "messages")
    if not messages:
        raise MalformedRecording("messages is empty")
    tools = None if outer.get("tools") is None else require_objects(outer["tools"], "tools")
    format = "anthropic" if _is_anthropic(outer, messages, tools or ()) else "openai"
    for index, message in enumerate(messages):
        check_message(format, message, f"messages[{index}]")
    system = _system(outer.get("system"))
    if format == "openai" and _begins_plainly(messages):
        system, messages = _system(messages[0].get("content")), messages[1:]
    entries = (RecordedMessage(adds=(message,), by_model=message["role"] == "assistant") for message in messages)
    model = outer.get("model")
    return Recording(
        id=id,
        format=format,
        system=system,
        tools=tools,
        steps=native_steps(format, tuple(entries)),
        model=model if isinstance(model, str) and model else None,
    )


def _gemini(outer: Object, id: str) -> Recording:
    contents = require_objects(outer["contents"], "contents")
    if not contents:
        raise MalformedRecording("contents is empty")
    for index, content in enumerate(contents):
        require_objects(content.get("parts"), f"contents[{index}].parts")
    tools = None if outer.get("tools") is None else require_objects(outer["tools"], "tools")
    given = outer.get("systemInstruction")
    parts = [] if given is None else require_objects(require_object(given, "systemInstruction").get("parts"), "parts")
    system = "\n".join(str(part.get("text") or "") for part in parts) or None
    entries = tuple(RecordedMessage(adds=(one,), by_model=one.get("role") == "model") for one in contents)
    return Recording(id=id, format="gemini", system=system, tools=tools, steps=native_steps("gemini", entries))


def native_steps(format: str, entries: Sequence[RecordedMessage]) -> tuple[Step, ...]:
    """Return the steps of a conversation in a provider's own messages."""

    def append(messages: tuple[Object, ...], times: Times) -> Step:
        return AppendMessages(format, messages, times)

    return weave(entries, append)


def check_message(format: str, message: Object, where: str, line: int | None = None) -> None:
    """Check that a value is a message of the format; the server checks the finer rules. Raises MalformedRecording."""
    role = message.get("role")
    if role not in (_ANTHROPIC_ROLES if format == "anthropic" else _OPENAI_ROLES):
        raise MalformedRecording(f"{where}.role {role!r} is no role of {format} messages", line=line)
    content = message.get("content")
    if content is not None or role != "assistant" or format == "anthropic":
        require_content(content, f"{where}.content", line)
    if format == "anthropic":
        return
    if role == "tool":
        require_string(message.get("tool_call_id"), f"{where}.tool_call_id", line)
    for index, call in enumerate(require_objects(message.get("tool_calls") or [], f"{where}.tool_calls", line)):
        require_string(call.get("id"), f"{where}.tool_calls[{index}].id", line)


def _is_anthropic(outer: Object, messages: Sequence[Object], tools: Sequence[Object]) -> bool:
    if outer.get("system") is not None or any("input_schema" in tool for tool in tools):
        return True
    parts = (part for message in messages if isinstance(message.get("content"), list) for part in message["content"])
    return any(isinstance(part, dict) and part.get("type") in _ANTHROPIC_PARTS for part in parts)


def _begins_plainly(messages: Sequence[Object]) -> bool:
    """Return whether the only system prompt is plain, so that a neutral event can hold it without loss."""
    prompts = [message for message in messages[:2] if message["role"] in ("system", "developer")]
    return prompts == [messages[0]] and prompts[0] == {"role": "system", "content": prompts[0].get("content")}


def _system(value: Json) -> str | tuple[Object, ...] | None:
    if value is None:
        return None
    content = require_content(value, "system")
    return content if isinstance(content, str) else tuple(content)
