"""Files that a tool result shows as modified, by the unified diffs in it."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from app.core.digest.files import COMMANDS, LISTING, LOOKING, PATH_CHARS_MAX, command_of
from app.core.log.events import Json

TEXT_CHARS_MAX: Final = 200_000

_FILE: Final = re.compile(r"^--- ([^\t\n]{1,1000})[^\n]{0,200}\n\+\+\+ ([^\t\n]{1,1000})[^\n]{0,200}\n@@ -\d", re.M)
_RENAMED: Final = re.compile(r"^rename to ([^\n]{1,1000})$", re.M)
_NOTHING: Final = "/dev/null"
_SHOWING: Final = re.compile(
    r"\bgit\b[^|;&\n]{0,200}?\s(?:show|log|reflog|blame|format-patch|stash|range-diff|diff-tree)\b"
    r"|\bgit\b[^|;&\n]{0,200}?\sdiff\b[^|;&\n]{0,200}?(?:\.\.|\s--no-index\b)"
    r"|(?:^|[;&\n]\s{0,5})(?:gh|glab|cat|head|tail|less|more|sed -n|grep|rg|curl|wget|diff|interdiff)\s"
)
"""Commands whose diffs show history or other places, not a change that the command or the session made."""


def diffed_paths(text: str) -> Iterator[str]:
    """Yield the files of the unified diffs in a text, including deleted files and diffs inside JSON."""
    text = text[:TEXT_CHARS_MAX]
    if "+++ " not in text and "rename to " not in text:
        return
    if "\\n+++ " in text:
        text = text.replace('"', "\n").replace("\\n", "\n").replace("\\t", "\t")
    for old, new in _FILE.findall(text):
        path = old.removeprefix("a/") if new.strip() == _NOTHING else new.removeprefix("b/")
        if (path := path.strip()) and path != _NOTHING and len(path) <= PATH_CHARS_MAX:
            yield path
    yield from (path.strip() for path in _RENAMED.findall(text) if path.strip())


def shows_own_change(tool: str, arguments: Mapping[str, Json]) -> bool:
    """Return whether a diff in a call's result shows a change that this call or session made.

    A call that reads, searches or looks into history shows other changes.
    """
    command = command_of(tool, arguments)
    if command is not None:
        return not _SHOWING.search(command)
    if any(isinstance(arguments.get(name), str) for name in COMMANDS):
        return arguments.get("command") != "view"
    return not LOOKING.search(tool) and not LISTING.search(tool)
