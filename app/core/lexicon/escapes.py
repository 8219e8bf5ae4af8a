"""Escape sequences in code, in JSON inside strings and in terminal output, whose letters belong to no name."""

import re
from typing import Final

# Each begins with a plain character, for which a search looks fast.
_ESCAPES: Final = (
    r"\x1b\[[0-9;]*[A-Za-z]"  # colours
    r"|\\(?<!\\\\)\\*+(?:(?:e|x1b|033|u001b)\[[0-9;]*[A-Za-z]|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[abefnrtv])"
    r"|%n(?=[A-Z])"  # a format's line break
)
_ESCAPE: Final = re.compile(_ESCAPES)
_PATH: Final = r"(?P<path>(?<![A-Za-z0-9])[A-Za-z]:\\{1,4}(?=[\w.])(?:[\w.@~-]+\\{0,4})+)"
"""`C:\\new\\table` holds no escapes."""
_ESCAPE_OR_PATH: Final = re.compile(f"{_PATH}|{_ESCAPES}")


def unescaped(text: str) -> str:
    r"""The text with each escape sequence replaced by a space: `a\nTo` becomes `a To`. Takes time linear in the text.

    A path with a drive letter stays as it is.
    """
    return _ESCAPE_OR_PATH.sub(_blank, text) if ":\\" in text else _ESCAPE.sub(" ", text)


def _blank(found: re.Match[str]) -> str:
    return found[0] if found["path"] else " "
