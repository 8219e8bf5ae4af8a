"""Commits, branches, pushes and pull requests that commands made, and changes that commands undid, by their output."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from app.core.digest.files import is_temporary
from app.core.digest.outcomes import ERROR
from app.core.digest.sentences import shorten
from app.core.digest.shell import Step, steps

TITLE_CHARS_MAX: Final = 72
MADE_MAX: Final = 20
COMMITTED: Final = "committed "
AMENDED: Final = " (amended)"
_UNDONE: Final = "undone: "

_COMMITTED: Final = re.compile(r"^\[[^\]\n]{1,100}? ([0-9a-f]{7,40})\] ([^\n]{1,400})", re.M)
_PUSHED: Final = re.compile(r"^ [ *+][^\n]{1,80}?(\S{1,120}) -> (\S{1,120})(?: \(forced update\))?$", re.M)
_OPENED: Final = re.compile(r"https?://[^\s\"'<>]{1,200}/(?:pull|merge_requests|issues)/(\d{1,9})\b")
_COMMITS_UNDONE: Final = re.compile(r"undone: (\d{1,3}) newest commits")
_MAY_MAKE: Final = re.compile(r"\b(?:git|gh|glab)\b")
_NEW_BRANCH: Final = re.compile(r"^Switched to a new branch '([^'\n]{1,120})'", re.M)
_COMMITTING: Final = frozenset({"commit", "revert", "merge", "cherry-pick", "rebase"})
_THINGS: Final = {"pr": "pull request", "mr": "merge request", "issue": "issue"}
_EVERYTHING: Final = frozenset({".", "*", ":/"})


class Undone(NamedTuple):
    """Changes that a command took back: uncommitted ones of `paths`, or all of them without any; and commits."""

    paths: tuple[str, ...] = ()
    commits: int = 0
    keeps_changes: bool = False


def repository_lines(calls: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    """Return the lines on work that commands made or undid, given their text, state and output; see `unite_lines`."""
    return unite_lines(line for command, state, output in calls for line in _lines(command, state, output))


def unite_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines in order, the newest MADE_MAX, without the commits that later lines undo or replace.

    Uncommitted changes that were undone before a commit are no longer mentioned.
    """
    made: list[str] = []
    for line in lines:
        found = _COMMITS_UNDONE.match(line)
        wanted = int(found[1]) if found else int(line.endswith(AMENDED))
        commits = [one for one in made if one.startswith(COMMITTED)]
        gone = commits[len(commits) - min(wanted, len(commits)) :]
        if line.startswith(COMMITTED):
            gone += [one for one in made if one.startswith(_UNDONE) and not _COMMITS_UNDONE.match(one)]
            line = line.removesuffix(AMENDED) if commits else line
        elif found and gone:
            line = f"{_UNDONE}{wanted - len(gone)} newest commits{line[found.end() :]}" if wanted > len(gone) else ""
        made = [one for one in made if one not in gone and one != line] + ([line] if line else [])
    return tuple(made)[-MADE_MAX:]


def _lines(command: str, state: str, output: str) -> Iterator[str]:
    parts = list(steps(command)) if _MAY_MAKE.search(command) else []
    if any(step.words[:1] == ("cd",) and is_temporary(step.words[-1]) for step in parts):
        return
    for step in parts:
        program, action, rest = _git(step)
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
        elif program in ("gh", "glab") and action in _THINGS and rest[:1] == ("create",):
            title = next((word for before, word in pairwise(rest) if before in ("-t", "--title")), "")
            for number in _OPENED.findall(output)[-1:]:
                yield f"created {_THINGS[action]} #{number}" + (f" {_quoted(title)}" if title else "")
    for back in undone_changes(command, state):
        kept = ", their changes kept" if back.keeps_changes else ""
        if back.commits:
            yield f"undone: {back.commits} newest commits{kept}"
        elif back.paths:
            yield f"undone: uncommitted changes of {', '.join(back.paths)}"
        else:
            yield "undone: all uncommitted changes"


def commits_in(command: str, output: str) -> bool:
    """Return whether a command committed."""
    return any(line.startswith(COMMITTED) for line in _lines(command, ERROR, output))


def _quoted(title: str) -> str:
    return f'"{shorten(title, TITLE_CHARS_MAX)}"'


def undone_changes(command: str, state: str) -> Iterator[Undone]:
    """Yield the earlier changes and commits that a command took back, if it did not fail."""
    if state == ERROR or not _MAY_MAKE.search(command):
        return
    for step in steps(command):
        program, action, rest = _git(step)
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


def _git(step: Step) -> tuple[str, str, tuple[str, ...]]:
    """Return the program of a step, its subcommand and the words after it."""
    words = step.words
    program = words[0].rsplit("/", 1)[-1] if words else ""
    at = 1
    while program == "git" and at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("-C", "-c") else 1
    return program, words[at] if at < len(words) else "", words[at + 1 :]
