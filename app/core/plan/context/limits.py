"""Cutting JSON down to limits for each kind of value; its shape and the beginnings of its values stay."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from app.core.log.events import Json

TRUNCATED: Final = "...[truncated]"
DATA_FIELDS: Final = frozenset({"base64", "b64", "b64_json", "data", "file_data", "image_data"})
"""Names of fields whose text counts as base64 if it looks like base64."""

_DATA: Final = re.compile(r"[A-Za-z0-9+/_\s-]+={0,2}\s{0,2}")
_DATA_ADDRESS: Final = re.compile(r"data:[\w.+/-]{0,100}(?:;[\w=-]{1,60})*;base64,")


class Limits(NamedTuple):
    """The maximums that stay: characters of a text, items of a list, keys of an object, characters of uncut base64."""

    chars: int
    items: int
    keys: int
    data: int


def limited(value: Json, limits: Limits, name: str = "") -> Json:
    """Return the value of field `name`, cut to the limits. A text that begins with `ref:` is kept whole."""
    if isinstance(value, str):
        return _text(value, limits, name)
    if isinstance(value, Mapping):
        kept = list(value.items())[: limits.keys]
        cut = {key: limited(inner, limits, key) for key, inner in kept}
        return {**cut, "...": f"({len(value) - limits.keys} more)"} if len(value) > limits.keys else cut
    if isinstance(value, list):
        items = [limited(inner, limits, name) for inner in value[: limits.items]]
        return [*items, f"... ({len(value) - limits.items} more)"] if len(value) > limits.items else items
    return value


def _text(value: str, limits: Limits, name: str) -> str:
    if value.startswith("ref:"):
        return value
    if len(value) > min(limits.chars, limits.data) and _is_data(value, name):
        # A part of a base64 text is useless.
        return value if len(value) <= limits.data else f"[base64, {len(value)} characters]{TRUNCATED}"
    return value if len(value) <= limits.chars else value[: limits.chars] + TRUNCATED


def _is_data(value: str, name: str) -> bool:
    if _DATA_ADDRESS.match(value):
        return True
    return name in DATA_FIELDS and _DATA.fullmatch(value) is not None
