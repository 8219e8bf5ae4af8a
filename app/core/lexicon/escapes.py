"""Removal of escape sequences in code, JSON strings and terminal output, since their letters belong to no name."""

import re
from typing import Final

# No two of them match a common character, and each begins with a literal character, which a search finds fast.
_COLOUR: Final = r"\x1b\[[0-9;]*[A-Za-z]"
_BACKSLASH: Final = (
    r"\\(?<!\\\\)\\*+(?:(?:e|x1b|033|u001b)\[[0-9;]*[A-Za-z]|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[abefnrtv])"
)
_LINE_BREAK: Final = r"%n(?=[A-Z])"  # of a format string
_BY_START: Final = tuple((s, re.compile(p)) for s, p in (("\x1b", _COLOUR), ("\\", _BACKSLASH), ("%n", _LINE_BREAK)))
_PATH: Final = r"(?P<path>(?<![A-Za-z0-9])[A-Za-z]:\\{1,4}(?=[\w.])(?:[\w.@~-]+\\{0,4})+)"
"""`C:\\new\\table` holds no escapes."""
_ESCAPE_OR_PATH: Final = re.compile("|".join((_PATH, _COLOUR, _BACKSLASH, _LINE_BREAK)))


def unescaped(text: str) -> str:
    r"""Return the text with each escape sequence replaced by a space: `a\nTo` becomes `a To`. Takes linear time.

    A path with a drive letter is unchanged.
    """
    if ":\\" in text:
        return _ESCAPE_OR_PATH.sub(_blank, text)
    for start, escape in _BY_START:
        if start in text:
            text = escape.sub(" ", text)
    return text


def _blank(found: re.Match[str]) -> str:
    return found[0] if found["path"] else " "
