"""Several summaries as one text: their words side by side, and each of their tagged sections once."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.digest.appendix import TAGS
from app.core.digest.outcomes import bare_command

_SECTION: Final = re.compile(rf"^<({'|'.join(TAGS)})>\n(.*?)^</\1>$\n?", re.M | re.S)
_BARE: Final = re.compile(r"^#{1,3}[^\n]*\n(?=\[\.\.\. )", re.M)
"""A heading with nothing under it but that something is left out."""
_NAME: Final = re.compile(r"\S+ ?[=:] \S+|\S+")
"""A name, or one with its number, of a section of names."""
_STATE: Final = re.compile(r"^\[\w+\] ")
REQUEST_CHARS: Final = 80
"""Requests that begin with the same characters are one, shortened to different lengths."""
_SORTED: Final = frozenset({"modified-files", "read-files"})
_QUOTES: Final = frozenset({"requests", "constraints"})
"""Sections of lines that a summary's own words may hold too."""


@dataclass(frozen=True, slots=True)
class Union:
    """The words of each summary without its sections, and the sections of all."""

    words: tuple[str, ...]
    sections: str


def unite(texts: Sequence[str]) -> Union:
    """Unite the sections of summaries, given oldest first; of two lines about one thing the newer one stays."""
    words = tuple(re.sub(r"\n{3,}", "\n\n", _BARE.sub("", _SECTION.sub("", text))).strip() for text in texts)
    told = " ".join(" ".join(words).split())
    found: dict[str, dict[str, str]] = {tag: {} for tag in TAGS}
    for tag, inner in (match.groups() for text in texts for match in _SECTION.finditer(text)):
        for key, line in _entries(tag, inner):
            if not (tag in _QUOTES and line.removeprefix("- ") in told):
                found[tag].pop(key, None)
                found[tag][key] = line
    for path in found["modified-files"]:
        found["read-files"].pop(path, None)
    return Union(words, "\n".join(_written(tag, lines) for tag, lines in found.items() if lines))


def _entries(tag: str, inner: str) -> Iterable[tuple[str, str]]:
    """The lines of a section, or its names, each with what it is about."""
    if tag == "identifiers":
        return ((name, name) for name in _NAME.findall(inner))
    lines = [line for line in inner.splitlines() if line]
    if tag == "commands":
        return ((bare_command(_STATE.sub("", line)), line) for line in lines)
    return ((line[:REQUEST_CHARS] if tag == "requests" else line, line) for line in lines)


def _written(tag: str, lines: Mapping[str, str]) -> str:
    entries = sorted(lines.values()) if tag in _SORTED else list(lines.values())
    return f"<{tag}>\n{(' ' if tag == 'identifiers' else chr(10)).join(entries)}\n</{tag}>"
