"""Texts that edits replace, which must be visible word for word when the model quotes them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

OLD_TEXT: Final = ("old_string", "oldText", "old_str")
"""Arguments of editing tools that quote the text to replace: Claude Code's, pi's, and Anthropic's text editor's."""
CHARS_MIN: Final = 10
"""Minimum length; shorter quotes are found by chance."""
_LINE_NUMBER: Final = re.compile(r"^\s*\d+(?:→|\t)", re.MULTILINE)


def quoted(arguments: Any) -> Iterator[str]:
    """Yield the texts that a call's arguments quote in order to replace them."""
    found = parsed(arguments)
    for edit in (found, *_edits(found)):
        for name in OLD_TEXT:
            text = edit.get(name)
            if isinstance(text, str) and len(text.strip()) >= CHARS_MIN:
                yield text


def parsed(arguments: Any) -> Mapping[str, Any]:
    """Return a call's arguments as an object, recorded as such or as JSON text; an empty one otherwise."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return arguments if isinstance(arguments, Mapping) else {}


def unnumbered(text: str) -> str:
    """Remove the line numbers of a listing, so that a quote of several lines is found in it."""
    return _LINE_NUMBER.sub("", text)


def strings(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, including those within `arguments` given as JSON text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from strings(inner)
            if name == "arguments" and isinstance(inner, str):
                yield from strings(dict(parsed(inner)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings(inner)


def _edits(arguments: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    edits = arguments.get("edits")
    yield from (edit for edit in edits if isinstance(edit, Mapping)) if isinstance(edits, list) else ()
