"""Several summaries as one text: their words one after the other, and each of their tagged sections once.

Failures that a later summary reports as fixed, or reports again, are removed, as are plans that are older than an edit,
and a check that passed before later edits is marked. A check that failed before them is named only in the words of its
own summary. Names that the rest of the text shows are removed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from app.core.memory.digest.appendix import FORMER_REQUESTS, REMOVED_MARK, REQUESTS, TAGS
from app.core.memory.digest.calls import DELETED, OPEN, by_state, parse_tasks, unite_tasks
from app.core.memory.digest.checks import Check, checks_of, covers
from app.core.memory.digest.files import distinct_files, is_one_of
from app.core.memory.digest.outcomes import BEFORE_CHANGES, bare_command
from app.core.plan.state.settled import EDITED, FAILED_CHANGE, FAILED_COMMAND, STATE_MARK, UNRESOLVED_LINE

_SECTION: Final = re.compile(rf"^<({'|'.join(TAGS)})>\n(.*?)^</\1>$\n?", re.M | re.S)
_BARE: Final = re.compile(r"#(?<=^#)#{0,2}[^\n]*\n(?=\[\.\.\. )", re.M)
"""A heading with nothing under it but a line about omitted content."""
_NAME: Final = re.compile(r"\S+ ?[=:] \S+|\S+")
"""An entry of a section of names: a name, or a name with its number."""
_POSSIBLE_NAME: Final = re.compile(r"[\w./@~:-]*\w")
_END: Final = re.compile(r"[./](?=(.*))")
_PASSED, _FAILED = "[ok] ", "[error] "
_BEFORE_EDITS: Final = "before the last edits"
_OLD: Final = re.compile(f"{_BEFORE_EDITS}|{BEFORE_CHANGES}")
"""The mark of a check of an older part, which summaries of 0.3 have too, and that of newer summaries."""
_PLANNED: Final = re.compile(r"#(?<=^#)#(?:# In Progress|# Not Started| Next Steps)\n(?:- [^\n]*(?:\n|\Z))+", re.M)
_NOTHING_BLOCKED: Final = re.compile(r"#(?<=^#)## Blocked\n(?=#|\Z)", re.M)
_NO_PROGRESS: Final = re.compile(r"#(?<=^#)# Progress\n(?=## |\Z)", re.M)
REQUEST_CHARS: Final = 80
"""The prefix by which requests count as one, since they are shortened to different lengths."""
_SORTED: Final = frozenset({"modified-files", "read-files"})
_REQUESTS: Final = frozenset({REQUESTS, FORMER_REQUESTS})
_QUOTES: Final = _REQUESTS | {"constraints"}
"""Sections whose lines a summary's own words may hold too."""


@dataclass(frozen=True, slots=True)
class Union:
    """The words of each summary without its sections, and the sections of all."""

    words: tuple[str, ...]
    sections: str


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A summary's words and the entries of its sections; its passed checks, and the failed commands of its words."""

    words: str
    entries: tuple[tuple[str, str, str], ...]
    passed: tuple[Check, ...]
    failed: frozenset[str]
    names_edits: bool


UNIONS_CACHED: Final = 16
TEXTS_CACHED: Final = 64
"""Numbers of unions and of summaries that are cached: a plan that folds writes its summaries several times."""


def unite(texts: Sequence[str]) -> Union:
    """Unite the sections of summaries, given oldest first; of two lines about one thing the newer one stays."""
    return _unite(tuple(texts))


@lru_cache(maxsize=UNIONS_CACHED)
def _unite(texts: tuple[str, ...]) -> Union:
    parsed = [_parse(text) for text in texts]
    words = [one.words for one in parsed]
    all_words = " ".join(" ".join(words).split())
    found: dict[str, dict[str, str]] = {tag: {} for tag in TAGS}
    passed: list[Check] = []
    failed: set[str] = set()
    modified: set[str] = set()
    newest_edit = max((at for at, one in enumerate(parsed) if one.names_edits), default=0)
    for at in reversed(range(len(texts))):
        words[at] = _drop_old_failures(parsed[at], passed, failed, modified, is_old=at < newest_edit)
        passed += parsed[at].passed
        failed |= parsed[at].failed
        modified |= {path for tag, path, _ in parsed[at].entries if tag == "modified-files"}
    for at, one in enumerate(parsed):
        is_old = at < newest_edit
        for tag, key, line in one.entries:
            if not (tag in _QUOTES and line.removeprefix("- ") in all_words):
                found[tag].pop(key, None)
                line = _mark_old(line) if is_old and tag == "commands" else line
                # A failure before later edits says nothing about now.
                if not (is_old and line.startswith(_FAILED) and _OLD.search(line)):
                    found[tag][key] = line
    for path in found["modified-files"]:
        found["read-files"].pop(path, None)
    found["commands"] = _drop_passed_failures(found["commands"])
    removed = [path for path, line in found["modified-files"].items() if path != line]
    for tag in _SORTED:
        files = distinct_files(list(found[tag]))
        found[tag] = {path: f"{path}{REMOVED_MARK}" if is_one_of(path, removed) else path for path in files}
    found["tasks"] = _united_tasks([line for tag, _, line in one.entries if tag == "tasks"] for one in parsed)
    found["identifiers"] = _drop_visible_names(found, words)
    return Union(tuple(words), "\n".join(_write_section(tag, lines) for tag, lines in found.items() if lines))


@lru_cache(maxsize=TEXTS_CACHED)
def _parse(text: str) -> _Parsed:
    found = list(_SECTION.finditer(text))
    starts, ends = (0, *(one.end() for one in found)), (*(one.start() for one in found), len(text))
    outside = "".join(text[start:end] for start, end in zip(starts, ends, strict=True))
    words = re.sub(r"\n\n\n+", "\n\n", _BARE.sub("", outside)).strip()  # found faster than by `\n{3,}`
    sections = [one.groups() for one in found]
    return _Parsed(
        words=words,
        entries=tuple((tag, key, line) for tag, inner in sections for key, line in _entries(tag, inner)),
        passed=tuple(check for tag, inner in sections if tag == "commands" for check in _passed_checks(inner)),
        failed=frozenset(bare_command(command) for command in FAILED_COMMAND.findall(words)),
        names_edits=EDITED.search(words) is not None,
    )


def _passed_checks(commands: str) -> Iterator[Check]:
    """Yield the checks that the lines of a summary's commands report as passed."""
    for line in commands.splitlines():
        if line.startswith(_PASSED):
            yield from checks_of(line.removeprefix(_PASSED))


def _is_fixed(command: str, passed: Iterable[Check]) -> bool:
    checks = checks_of(command)
    return len(checks) == 1 and any(covers(later, checks[0]) for later in passed)


def _drop_old_failures(
    summary: _Parsed, passed: Sequence[Check], failed: Set[str], modified: Set[str], *, is_old: bool
) -> str:
    """Return a summary's words without the failures that later summaries report as fixed or report again.

    `passed`, `failed` and `modified` are the checks, commands and files of later summaries. Unresolved problems go too
    if a later summary names an edit or a passed check, and plans if it names an edit.
    """

    def line(found: re.Match[str]) -> str:
        return "" if bare_command(found[1]) in failed or _is_fixed(found[1], passed) else found[0]

    kept = FAILED_COMMAND.sub(line, summary.words) if summary.failed else summary.words
    kept = FAILED_CHANGE.sub(lambda found: "" if found[1] in modified else found[0], kept)
    kept = UNRESOLVED_LINE.sub("", kept) if is_old or passed else kept
    kept = _PLANNED.sub("", kept) if is_old else kept
    return _NO_PROGRESS.sub("", _NOTHING_BLOCKED.sub("", kept)).strip()


def _united_tasks(parts: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the agent's tasks in their newest states; none if no task is open.

    The number of tasks that a part left out is known to be right only if no other part lists any.
    """
    listed = [lines for lines in parts if lines]
    known = unite_tasks(task for lines in listed for line in lines for task in parse_tasks(line))
    tasks = [task for task in known if task.state != DELETED and (task.text or task.state in OPEN)]
    if not any(task.state in OPEN for task in tasks):
        return {}
    others = {line: line for line in listed[0][-1:] if len(listed) == 1 and not list(parse_tasks(line))}
    return {task.id: task.line for task in by_state(tasks)} | others


def _drop_visible_names(found: Mapping[str, Mapping[str, str]], words: Iterable[str]) -> dict[str, str]:
    """Return the names without those in the words, in another section or at the end of a longer name."""
    names = found["identifiers"]
    others = (line for tag, lines in found.items() if tag != "identifiers" for line in lines.values())
    shown = set(_POSSIBLE_NAME.findall("\n".join(others))).union(*map(_possible_names, words)) if names else set()
    shown.update(_END.findall("\n".join((*shown, *names))))
    return {name: name for name in names if name not in shown}


@lru_cache(maxsize=TEXTS_CACHED)
def _possible_names(words: str) -> frozenset[str]:
    """Return what may be a name in the words of a summary, which are the same in most unions that it is in."""
    return frozenset(_POSSIBLE_NAME.findall(words))


def _drop_passed_failures(lines: Mapping[str, str]) -> dict[str, str]:
    """Return the commands, oldest first, without the failures that later passes cover."""
    kept: dict[str, str] = {}
    passed: list[Check] = []
    for key, line in reversed(list(lines.items())):
        if not (line.startswith(_FAILED) and _is_fixed(line.removeprefix(_FAILED), passed)):
            kept[key] = line
        if line.startswith(_PASSED):
            passed += checks_of(line.removeprefix(_PASSED))
    return dict(reversed(list(kept.items())))


def _mark_old(line: str) -> str:
    """Return the line of a check, marked as run before later edits."""
    bare = STATE_MARK.sub("", line)
    if bare == line or _OLD.search(line) or not checks_of(bare):
        return line
    return f"{line}{';' if ' # ' in line else ' #'} {_BEFORE_EDITS}"


def _entries(tag: str, inner: str) -> Iterable[tuple[str, str]]:
    """Return the lines of a section, or its names, each with the key by which repetitions are found."""
    if tag == "identifiers":
        return ((name, name) for name in _NAME.findall(inner))
    lines = [line for line in inner.splitlines() if line]
    if tag == "commands":
        return ((bare_command(STATE_MARK.sub("", line)), line) for line in lines)
    if tag == "modified-files":
        return ((line.removesuffix(REMOVED_MARK), line) for line in lines)
    return ((line[:REQUEST_CHARS] if tag in _REQUESTS else line, line) for line in lines)


def _write_section(tag: str, lines: Mapping[str, str]) -> str:
    entries = sorted(lines.values()) if tag in _SORTED else list(lines.values())
    return f"<{tag}>\n{(' ' if tag == 'identifiers' else chr(10)).join(entries)}\n</{tag}>"
