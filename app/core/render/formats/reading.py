"""Checks shared by the readers of providers' messages."""

from collections.abc import Collection, Mapping, Sequence

from app.core.errors import InvalidMessage
from app.core.log.events import Json

SYSTEM_ROLES = frozenset({"system", "developer"})


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


def text_field(value: Mapping[str, Json], name: str, index: int) -> str:
    """Return a field that must be a non-empty string. Raises InvalidMessage."""
    found = value.get(name)
    if not isinstance(found, str) or not found:
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


def input_field(value: Mapping[str, Json], index: int) -> str:
    """Return a custom tool call's input, which may be any string. Raises InvalidMessage."""
    found = value.get("input")
    if not isinstance(found, str):
        raise InvalidMessage("input must be text", index=index, field="input")
    return found
