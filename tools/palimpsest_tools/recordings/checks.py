"""Strict readers of values from a file. Each returns the value or raises MalformedRecording."""

import json
from collections.abc import Iterator
from typing import NoReturn

from app.core.log.events import Json
from palimpsest_tools.recordings.recording import MalformedRecording, Object


def parse_json(text: str, *, first_line: int = 1) -> Json:
    """Parse JSON text that starts on line `first_line` of its file. NaN and infinities are refused."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise MalformedRecording(
            f"not JSON: {error.msg} (column {error.colno})", line=first_line + error.lineno - 1
        ) from None
    except (ValueError, RecursionError) as error:
        raise MalformedRecording(f"not JSON: {error}", line=first_line) from None


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines with their numbers. Only a line feed ends a line: JSON may hold other separators."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def require_object(value: Json, what: str, line: int | None = None) -> Object:
    """Return the value, which must be a JSON object."""
    if not isinstance(value, dict):
        raise MalformedRecording(f"{what} must be an object, not {type_name(value)}", line=line)
    return value


def require_objects(value: Json, what: str, line: int | None = None) -> tuple[Object, ...]:
    """Return the values, which must be a list of JSON objects."""
    if not isinstance(value, list):
        raise MalformedRecording(f"{what} must be a list, not {type_name(value)}", line=line)
    return tuple(require_object(item, f"{what}[{index}]", line) for index, item in enumerate(value))


def require_string(value: Json, what: str, line: int | None = None) -> str:
    """Return the value, which must be a non-empty string."""
    if not isinstance(value, str) or not value:
        raise MalformedRecording(f"{what} must be a non-empty string, not {type_name(value)}", line=line)
    return value


def require_content(value: Json, what: str, line: int | None = None) -> str | list[Object]:
    """Return message content, which must be a string or a list of parts that each have a `type`."""
    if isinstance(value, str):
        return value
    parts = require_objects(value, what, line)
    for index, part in enumerate(parts):
        require_string(part.get("type"), f"{what}[{index}].type", line)
    return list(parts)


def type_name(value: Json) -> str:
    """Return the name of a JSON value's type for a message to the user."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    if value == "":
        return "an empty string"
    return names.get(type(value), "a number")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
