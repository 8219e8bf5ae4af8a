"""Files and the repository: read, modified, committed."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from app.core.lexicon.identifiers import FILE_LISTS, FILES
from app.core.log.events import Json
from app.core.memory.digest.commands import Step, steps, written_paths
from app.core.memory.digest.outcomes import ERROR, OK, is_change
from app.core.memory.digest.sentences import shorten

TEXT_CHARS_MAX: Final = 200_000

_FILE: Final = re.compile(r"^--- ([^\t\n]{1,1000})[^\n]{0,200}\n\+\+\+ ([^\t\n]{1,1000})[^\n]{0,200}\n@@ -\d", re.M)
_RENAMED: Final = re.compile(r"^rename to ([^\n]{1,1000})$", re.M)
_NOTHING: Final = "/dev/null"
_SHOWING: Final = re.compile(
    r"\bgit\b[^|;&\n]{0,200}?\s(?:show|log|reflog|blame|format-patch|stash|range-diff|diff-tree)\b"
    r"|\bgit\b[^|;&\n]{0,200}?\sdiff\b[^|;&\n]{0,200}?(?:\.\.|\s--no-index\b)"
    r"|(?:^|[;&\n]\s{0,5})(?:gh|glab|cat|head|tail|less|more|sed -n|grep|rg|curl|wget|diff|interdiff)\s"
)
"""Commands whose output may hold diffs of history or of other places, not of a change that the session made."""


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
    return not _READ_TOOLS.search(tool) and not _LIST_TOOLS.search(tool)


_NAMES_FILES: Final = (*FILES, *FILE_LISTS)
COMMANDS: Final = ("command", "cmd", "script")
"""Arguments that hold a shell command."""
PATH_CHARS_MAX: Final = 1000

_MODIFYING: Final = re.compile(
    r"write|edit|patch|create|replace|insert|append|save|delete|remove|rename|move(?!d)|notebook(?!_?read)", re.I
)
_READ_TOOLS: Final = re.compile(r"read|view|cat\b|open|show|get", re.I)
_LIST_TOOLS: Final = re.compile(r"grep|search|glob|find|list|(?:^|_)(?:ls|tree|stat)(?:$|_)|exists", re.I)
_PATCHES: Final = ("patch", "diff", "input")
_BODIES: Final = ("content", "contents", "text", "file_text", "new_source", "new_content")
OLD_TEXTS: Final = ("old_string", "old_str", "oldText", "old_text", "search", "old")
NEW_TEXTS: Final = ("new_string", "new_str", "newText", "new_text", "replace", "new")
_PATCHED: Final = re.compile(
    r"^(?:\*\*\* (?:Update|Add|Delete) File: |\*\*\* Move to: |\+\+\+ (?:b/)?|rename to )([^\t\n]{1,1000})", re.M
)
_TEMPORARY: Final = re.compile(r"(?:/private|/var)?/tmp(?:/|$)|/dev/")
_LOOKING: Final = re.compile(
    r"read|view|cat\b|grep|search|glob|find|list|(?:^|_)ls(?:$|_)|tree|stat|todo|task_?(?:create|update|get)|^plan|fetch"
    r"|^skill$|^think$",
    re.I,
)
"""Names of tools that change nothing but the agent's own notes."""
_PROSE: Final = re.compile(
    r"\.(?:md|mdx|markdown|rst|adoc|txt)$|(?:^|/)\.[a-z][\w-]{0,40}/[^/]{1,80}\.(?:json|lock)$", re.I
)
"""Names of plain text, and of settings that tools keep in a hidden folder of their own."""
_COMMIT_DELETED: Final = re.compile(r"^ delete mode \d{6} (\S[^\n]{0,300})$", re.M)
_COMMIT_RENAMED: Final = re.compile(
    r"^ rename (?:([^\n{]{0,300})\{([^\n{}]{0,200}) => [^\n{}]{0,200}\}([^\n]{0,300}?)|(\S{1,300}) => \S{1,300})"
    r" \(\d{1,3}%\)$",
    re.M,
)
"""Lines of a commit's output on files that are gone; of a renamed one, the parts of its old path."""
_SHELLS: Final = re.compile(r"bash|shell|exec|terminal|command|run", re.I)


class FileUse(NamedTuple):
    """The paths that a call reads and modifies, as the call names them, in order."""

    read: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()


def is_one_of(path: str, named: Iterable[str]) -> bool:
    """Return whether a path is among the named ones, which may lack its first folders."""
    return any(path == one or path.endswith(f"/{one}") for one in named)


def still_removed(removed: Collection[str], written: Collection[str]) -> list[str]:
    """Return those of the removed files and folders that were not written again, nor anything in them."""
    if not removed or not written:
        return [*removed]
    places = [place for path in written for place in (path, *accumulate(path.split("/")[:-1], "{}/{}".format))]
    return [path for path in removed if not any(is_one_of(place, (path,)) for place in places)]


def distinct_files(files: Sequence[str]) -> Sequence[str]:
    """Return the files except those whose path is the end of another one's path."""
    ends = {file[slash.end() :] for file in files for slash in re.finditer("/", file)}
    return [file for file in files if file not in ends]


def is_temporary(path: str) -> bool:
    """Return whether a path is outside the work, in a folder for temporary files."""
    return _TEMPORARY.match(path) is not None


def changes_nothing(tool: str) -> bool:
    """Return whether a tool, judged by its name, changes nothing but the agent's own notes."""
    return _LOOKING.search(tool) is not None


def is_prose_file(path: str) -> bool:
    """Return whether a file's name is that of plain text, or of a tool's settings, which checks seldom read."""
    return _PROSE.search(path) is not None


def edits_in(arguments: Mapping[str, Json]) -> Iterable[tuple[str, str]]:
    """Yield the old and the new text of each edit in a call's arguments."""
    edits = arguments.get("edits")
    for one in (arguments, *(edits if isinstance(edits, list) else ())):
        if isinstance(one, Mapping):
            old = next((one[name] for name in OLD_TEXTS if isinstance(one.get(name), str)), None)
            new = next((one[name] for name in NEW_TEXTS if isinstance(one.get(name), str)), None)
            if old is not None and new is not None:
                yield old, new


def single_edit(arguments: Mapping[str, Json]) -> tuple[str, str] | None:
    """Return the old and the new text of a call that makes one edit in one place; None for any other call."""
    edits = list(edits_in(arguments))
    return edits[0] if len(edits) == 1 and not arguments.get("replace_all") else None


def files_of(tool: str, arguments: Mapping[str, Json]) -> FileUse:
    """Return the files that a call uses: of a shell command those that it writes (`use_of` also has those it prints).

    A folder that is searched or listed does not count.
    """
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
    if _READ_TOOLS.search(tool) or arguments.get("command") == "view" or not _LIST_TOOLS.search(tool):
        return FileUse(read=paths)
    return FileUse()


def command_of(tool: str, arguments: Mapping[str, Json]) -> str | None:
    """Return the shell command of a call, None if the call runs none. A list of words is joined into one command."""
    if any([arguments[name] for name in _NAMES_FILES if name in arguments]):
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
    return _has(arguments, _BODIES) and not _READ_TOOLS.search(tool) and not _LIST_TOOLS.search(tool)


def is_listing(tool: str) -> bool:
    """Return whether a tool searches or lists."""
    return _LIST_TOOLS.search(tool) is not None and _MODIFYING.search(tool) is None


def writes_whole(arguments: Mapping[str, Json]) -> bool:
    """Return whether a call that modifies a file contains all of its text."""
    return _has(arguments, _BODIES) and not _has(arguments, OLD_TEXTS)


def _has(arguments: Mapping[str, Json], names: Iterable[str]) -> bool:
    return any([isinstance(arguments[name], str) for name in names if name in arguments])


def named_paths(arguments: Mapping[str, Json]) -> Iterable[str]:
    """Yield the paths in a call's arguments, single or in a list."""
    for name in _NAMES_FILES:
        value = arguments.get(name)
        if value is None:
            continue
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


TITLE_CHARS_MAX: Final = 72
MADE_MAX: Final = 20
COMMITTED: Final = "committed "
AMENDED: Final = " (amended)"
_UNDONE: Final = "undone: "

_COMMITTED: Final = re.compile(r"^\[[^\]\n]{1,100}? ([0-9a-f]{7,40})\] ([^\n]{1,400})", re.M)
_PUSHED: Final = re.compile(r"^ [ *+][^\n]{1,80}?(\S{1,120}) -> (\S{1,120})(?: \(forced update\))?$", re.M)
_OPENED: Final = re.compile(r"https?://[^\s\"'<>]{1,200}/(?:pull|merge_requests|issues)/(\d{1,9})\b")
_TITLE: Final = re.compile(rf'^{COMMITTED}(?:[0-9a-f]{{7,40}} )?"([^\n]+)"', re.M)
_COMMITS_UNDONE: Final = re.compile(r"undone: (\d{1,3}) newest commits")
_MAY_MAKE: Final = re.compile(r"\b(?:git|gh|glab)\b")
_REBASED: Final = re.compile(r"^(?:Rebasing \(\d{1,4}/\d{1,4}\)\s{0,2}){0,99}Successfully rebased\b", re.M)
_BROUGHT: Final = re.compile(rf"{_REBASED.pattern}|^(?:Merge made by\b|Updating [0-9a-f]{{7,40}}\.\.)", re.M)
"""Output of git after it brought in the commits of others."""
_HASH: Final = re.compile(f"^{COMMITTED}[0-9a-f]{{7,40}} ")
REBASED: Final = "rebased"
_NEW_BRANCH: Final = re.compile(r"^Switched to a new branch '([^'\n]{1,120})'", re.M)
_COMMITTING: Final = frozenset({"commit", "revert", "merge", "cherry-pick", "rebase"})
_THINGS: Final = {"pr": "pull request", "mr": "merge request", "issue": "issue"}
_EVERYTHING: Final = frozenset({".", "*", ":/"})
_ID: Final = re.compile(r"(?<=/)\d{5,20}\b")
"""A number in the address of one of many things, such as comments."""


class Undone(NamedTuple):
    """Changes that a command took back: the newest `commits`; if 0, the uncommitted changes of `paths` or of all files.

    `keeps_changes`: the changes of the commits are kept, uncommitted.
    """

    paths: tuple[str, ...] = ()
    commits: int = 0
    keeps_changes: bool = False


def unite_made(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines of `Digest.made` in order, the newest MADE_MAX.

    Left out are commits that later lines undo or amend, and reversals of uncommitted changes before a commit. A
    reversal that these commits do not use up names the commits still missing; after a rebase, earlier commits lose
    their hashes.
    """
    made: list[str] = []
    for line in lines:
        found = _COMMITS_UNDONE.match(line)
        undone_count = int(found[1]) if found else int(line.endswith(AMENDED))
        commits = [one for one in made if one.startswith(COMMITTED)]
        gone = commits[len(commits) - min(undone_count, len(commits)) :]
        if line.startswith(COMMITTED):
            gone += [one for one in made if one.startswith(_UNDONE) and not _COMMITS_UNDONE.match(one)]
            line = line.removesuffix(AMENDED) if commits else line
        elif found and gone:
            missing = undone_count - len(gone)
            line = f"{_UNDONE}{missing} newest commits{line[found.end() :]}" if missing else ""
        if line == REBASED:  # the commits before have other hashes now
            made = [_HASH.sub(COMMITTED, one) for one in made]
        made = [one for one in made if one not in gone and one != line] + ([line] if line else [])
    return tuple(made)[-MADE_MAX:]


def undone_titles(text: str) -> Sequence[str]:
    """Return the titles of the commits in summaries, oldest first, that later ones threw away, their changes too."""
    lines = [one for one in text.split("\n") if one.startswith((COMMITTED, _UNDONE)) and not one.endswith(" kept")]
    kept = _TITLE.findall("\n".join(unite_made(one.removesuffix(AMENDED) for one in lines)))
    return [one for one in _TITLE.findall(text) if one not in kept] if len(lines) <= MADE_MAX else []


def repository_lines(command: str, state: str, output: str) -> Iterator[str]:
    """Yield a line for each commit, push, branch, pull request, issue, call of `gh`, rebase and reversal by a command.

    Yields nothing for a command that changes to a folder for temporary files.
    """
    parts = list(steps(command)) if _MAY_MAKE.search(command) else []
    if any(step.words[:1] == ("cd",) and is_temporary(step.words[-1]) for step in parts):
        return
    for step in parts:
        program, action, rest = _split_subcommand(step)
        if program == "git" and action in _COMMITTING:
            end = AMENDED if "--amend" in rest else ""
            yield from (f"{COMMITTED}{commit} {_quoted(title)}{end}" for commit, title in _COMMITTED.findall(output))
            output = _COMMITTED.sub("", output)
        elif program == "git" and action == "push":
            pushed = dict.fromkeys(name for name, _ in _PUSHED.findall(output))
            if pushed:
                yield f"pushed {', '.join(pushed)}"
        elif program == "git" and action in ("checkout", "switch") and (found := _NEW_BRANCH.search(output)):
            yield f"created branch {found[1]}"
        elif program == "gh" and state == OK and rest and is_change(step.words) and rest[0] != "create":
            yield f"called gh {action} {_ID.sub('…', rest[0])}"
        elif program in ("gh", "glab") and action in _THINGS and rest[:1] == ("create",):
            title = next((word for before, word in pairwise(rest) if before in ("-t", "--title")), "")
            for number in _OPENED.findall(output)[-1:]:
                yield f"created {_THINGS[action]} #{number}" + (f" {_quoted(title)}" if title else "")
    if parts and _REBASED.search(output):
        yield REBASED
    for back in undone_changes(command, state):
        kept = ", their changes kept" if back.keeps_changes else ""
        if back.commits:
            yield f"undone: {back.commits} newest commits{kept}"
        elif back.paths:
            yield f"undone: uncommitted changes of {', '.join(back.paths)}"
        else:
            yield "undone: all uncommitted changes"


def deleted_by_commit(output: str) -> Iterator[str]:
    """Yield the paths that a commit's output shows as deleted or renamed, from the root of the repository."""
    yield from _COMMIT_DELETED.findall(output)
    for before, old, after, whole in _COMMIT_RENAMED.findall(output):
        yield whole or f"{before}{old}{after}".replace("//", "/")


def brings_changes(command: str, output: str) -> bool:
    """Return whether a command of git brought in the commits of others."""
    return "git " in command and _BROUGHT.search(output) is not None


def has_committed(command: str, output: str) -> bool:
    """Return whether a command committed, even if it failed afterwards."""
    # as if it had failed, so that reversals are not looked for
    return any(line.startswith(COMMITTED) for line in repository_lines(command, ERROR, output))


def _quoted(title: str) -> str:
    return f'"{shorten(title, TITLE_CHARS_MAX)}"'


def undone_changes(command: str, state: str) -> Iterator[Undone]:
    """Yield the earlier changes and commits that a command took back, if it did not fail."""
    if state == ERROR or not _MAY_MAKE.search(command):
        return
    for step in steps(command):
        program, action, rest = _split_subcommand(step)
        operands = tuple(word for word in rest if not word.startswith("-"))
        if program != "git":
            continue
        if action == "reset":
            found = re.fullmatch(r"(?:HEAD|@)(?:~(\d{1,3})|(\^{1,9}))", operands[0]) if operands else None
            commits = 0 if found is None else int(found[1]) if found[1] else len(found[2])
            if "--hard" in rest:
                yield Undone(commits=commits)
            elif commits:
                yield Undone(commits=commits, keeps_changes=True)
        elif action == "restore" and "--staged" not in rest:
            yield Undone(_paths(operands))
        elif action == "checkout" and operands and not {"-b", "-B", "-t", "--track", "--orphan"} & set(rest):
            after = rest[rest.index("--") + 1 :] if "--" in rest else operands
            if all(path in _EVERYTHING or "--" in rest or "." in path.rsplit("/", 1)[-1] for path in after):
                yield Undone(_paths(after))
        elif action == "stash" and operands[:1] in ((), ("push",), ("save",)):
            yield Undone()


def _paths(words: Sequence[str]) -> tuple[str, ...]:
    return () if _EVERYTHING & set(words) else tuple(words)


def _split_subcommand(step: Step) -> tuple[str, str, tuple[str, ...]]:
    """Return the program of a step, its subcommand, and the words after that; skips the options of `git` itself."""
    words = step.words
    program = words[0].rsplit("/", 1)[-1] if words else ""
    at = 1
    while program == "git" and at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("-C", "-c") else 1
    return program, words[at] if at < len(words) else "", words[at + 1 :]
