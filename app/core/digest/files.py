"""The files that a tool call reads and modifies, inferred from the tool's name and the shape of its arguments."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from app.core.digest.shell import written_paths
from app.core.lexicon.arguments import FILE_LISTS, FILES
from app.core.log.events import Json

_NAMES_FILES: Final = (*FILES, *FILE_LISTS)
COMMANDS: Final = ("command", "cmd", "script")
"""Arguments that hold a shell command."""
PATH_CHARS_MAX: Final = 1000

_MODIFYING: Final = re.compile(
    r"write|edit|patch|create|replace|insert|append|save|delete|remove|rename|move(?!d)|notebook(?!_?read)", re.I
)
LOOKING: Final = re.compile(r"read|view|cat\b|open|show|get", re.I)
LISTING: Final = re.compile(r"grep|search|glob|find|list|(?:^|_)ls(?:$|_)|tree|exists|stat", re.I)
_PATCHES: Final = ("patch", "diff", "input")
_BODIES: Final = ("content", "contents", "text", "file_text", "new_source", "new_content")
OLD_TEXTS: Final = ("old_string", "old_str", "oldText", "old_text", "search", "old")
NEW_TEXTS: Final = ("new_string", "new_str", "newText", "new_text", "replace", "new")
_PATCHED: Final = re.compile(
    r"^(?:\*\*\* (?:Update|Add|Delete) File: |\*\*\* Move to: |\+\+\+ (?:b/)?|rename to )([^\t\n]{1,1000})", re.M
)
_TEMPORARY: Final = re.compile(r"(?:/private|/var)?/tmp(?:/|$)|/dev/")
_SHELLS: Final = re.compile(r"bash|shell|exec|terminal|command|run", re.I)


class FileUse(NamedTuple):
    """The paths that a call reads and modifies, as the call names them, in order."""

    read: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()


def is_temporary(path: str) -> bool:
    """Return whether a path is outside the work, in a folder for temporary files."""
    return _TEMPORARY.match(path) is not None


def files_of(tool: str, arguments: Mapping[str, Json]) -> FileUse:
    """Return the files that a call uses. A folder that is searched or listed does not count."""
    command = command_of(tool, arguments)
    if command is not None:
        return FileUse(modified=tuple(written_paths(command)))
    paths = tuple(named_paths(arguments))
    changed = tuple(_patched(arguments))
    if changed:
        return FileUse(modified=tuple(dict.fromkeys((*paths, *changed))))
    if not paths:
        return FileUse()
    if _modifies(tool, arguments):
        return FileUse(modified=paths)
    if LOOKING.search(tool) or arguments.get("command") == "view" or not LISTING.search(tool):
        return FileUse(read=paths)
    return FileUse()


def command_of(tool: str, arguments: Mapping[str, Json]) -> str | None:
    """Return the shell command of a call, None if the call runs none. A list of words is joined into one command."""
    if any(arguments.get(name) for name in _NAMES_FILES):
        return None
    found = next((arguments[name] for name in COMMANDS if arguments.get(name)), None)
    if isinstance(found, list) and all(isinstance(word, str) for word in found):
        # In `["bash", "-lc", "text"]` the text is the command.
        return str(found[-1]) if len(found) > 1 and str(found[1]).startswith("-") else " ".join(found)
    if not isinstance(found, str):
        return None
    return found if "command" in arguments or _SHELLS.search(tool) else None


def _modifies(tool: str, arguments: Mapping[str, Json]) -> bool:
    action = arguments.get("command")
    if isinstance(action, str):
        # An editor tool with several actions names the action in `command`.
        return action != "view"
    if _MODIFYING.search(tool):
        return True
    if (_has(arguments, OLD_TEXTS) and _has(arguments, NEW_TEXTS)) or isinstance(arguments.get("edits"), list):
        return True
    return _has(arguments, _BODIES) and not LOOKING.search(tool) and not LISTING.search(tool)


def writes_whole(arguments: Mapping[str, Json]) -> bool:
    """Return whether a call that modifies a file contains all of its text."""
    return _has(arguments, _BODIES) and not _has(arguments, OLD_TEXTS)


def _has(arguments: Mapping[str, Json], names: Iterable[str]) -> bool:
    return any(isinstance(arguments.get(name), str) for name in names)


def named_paths(arguments: Mapping[str, Json]) -> Iterable[str]:
    """Yield the paths in a call's arguments, single or in a list."""
    for name in _NAMES_FILES:
        value = arguments.get(name)
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else (value,):
            path = item.get("path") if isinstance(item, Mapping) else item
            if isinstance(path, str) and 0 < len(path) <= PATH_CHARS_MAX and "\n" not in path:
                yield path


def _patched(arguments: Mapping[str, Json]) -> Iterable[str]:
    for name in _PATCHES:
        text = arguments.get(name)
        if isinstance(text, str):
            yield from patched_paths(text)


def patched_paths(text: str) -> Iterable[str]:
    """Return the paths that a patch names, in order; none if the text is not a patch."""
    return (path for path in _PATCHED.findall(text) if path != "/dev/null")
