"""How calls ended, as far as the log shows it, and which shell commands are runs of one and the same."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from app.core.digest.rejections import is_rejected
from app.core.digest.shell import Step, programs, steps, written_paths
from app.core.log.event import Event

OK, ERROR, REJECTED, UNKNOWN = "ok", "error", "rejected", "unknown"

COMMAND_CHARS_MAX: Final = 2_000
"""The most characters read of a command to tell what it runs."""
RESULT_TAIL_CHARS: Final = 2_000
CHECKS: Final = re.compile(
    r"\b(?:tests?|pytest|jest|vitest|mocha|rspec|lint|mypy|ruff|eslint|tsc|tsgo|build|check|vet|make|cargo|gradle|mvn)\b",
    re.I,
)
"""A command that tests or builds."""
_READERS_WORDS: Final = (
    "awk cat column cut diff file find grep head jq less ls nl rg sed sort stat tail tr tree uniq wc which"
)
READERS: Final = frozenset(_READERS_WORDS.split())
"""Programs whose output is text that was there before, errors in it included."""

_EXIT: Final = re.compile(
    r"\b(?:exit(?:ed)?(?: with)?(?: code| status)?|return ?code)\b[\"']?[ :=]{0,3}(-?\d{1,6})\b", re.I
)
_BROKEN: Final = re.compile(
    r"^(?:[^\n]{0,200}?[:)\]] |npm )?(?:error|fatal|panic)\b(?: [A-Z]{1,4}\d{1,6}|\[\w{1,20}\])?"
    r"(?::| \(| task failed| command failed| code )"
    r"|^Traceback \(most recent call last\)|\bcommand not found\b|: No such file or directory|: Permission denied",
    re.M | re.I,
)
"""Lines that a program prints when it fails."""
_RED: Final = re.compile(
    r"\b[1-9]\d{0,5} (?:tests? )?(?:failed|failing|failures?|errors?)\b|^[1-9]\d{0,5} issues?:|^\s{0,8}(?:--- )?FAIL\b"
    r"|^make: \*\*\*|^error(?:\[\w+\])?:|\[build failed\]|^[\w./-]{1,200}\.\w{1,5}:\d{1,6}:\d{1,6}: ",
    re.M | re.I,
)
"""Lines that a test or a build prints when it fails."""
_GREEN: Final = re.compile(
    r"^(?:=+ )?(?:\d{1,6} (?:tests? )?(?:passed|passing)\b|0 issues\.?$|ok[ \t]+\S+[ \t]+(?:\d|\(cached\))|PASS$"
    r"|test result: ok\b|Success: no issues found|All checks passed)",
    re.M,
)
"""The end of what a test, linter or build prints when all is well."""
GREEN_TAIL_CHARS: Final = 300
_REFUSED: Final = re.compile(
    r"(?:fatal|error): |[\w./-]{1,40}: [^\n]{0,200}(?:No such file|not found|Permission denied|cannot|invalid)", re.I
)
"""The first line of a reader's output when it could not read."""
_HARMLESS: Final = frozenset({"cd", "export", "set", "source", ".", "echo", "printf", "sleep", "true", "pwd", "clear"})
_FILTERS: Final = READERS | {"tee", "xargs", "more", "cat"}
_TAILS: Final = frozenset({"tail", "tee", "cat"})
_LOOKS_OF_GIT: Final = frozenset(
    ["blame", "branch", "diff", "grep", "log", "ls-files", "ls-tree", "reflog", "remote", "rev-parse", "show", "status"]
)


def state_of(result: Event | None, command: str | None = None) -> str:
    """How a call ended: `ok`, `error`, `rejected` by the user, or `unknown` where the log does not show it.

    The status of a pipe is its last program's, and `||`, `;` and `&` hide what ran before them: without a sign of
    failure in its output, nothing is known of such a command, unless the end of its output is shown and says that all
    is well.
    """
    if result is None:
        return UNKNOWN
    if is_rejected(result):
        return REJECTED
    text = result.text
    codes = _EXIT.findall(text[:300] + "\n" + text[-300:])
    if result.is_error or (codes and codes[-1].lstrip("-").strip("0")):
        return ERROR
    if command is None:
        return OK
    told = text[:RESULT_TAIL_CHARS] + "\n" + text[-RESULT_TAIL_CHARS:]
    if reads_only(command):
        failed = _REFUSED.match(text.lstrip()) is not None
    else:
        failed = _BROKEN.search(told) is not None or (is_check(command) and _RED.search(told) is not None)
    if failed:
        return ERROR
    told_by_end = is_check(command) and shows_end(command) and _GREEN.search(text[-GREEN_TAIL_CHARS:]) is not None
    return OK if told_by_end or shows_status(command) else UNKNOWN


def is_check(command: str) -> bool:
    """Whether a command tests or builds."""
    return CHECKS.search(command[:COMMAND_CHARS_MAX]) is not None


@lru_cache(maxsize=1_024)
def reads_only(command: str) -> bool:
    """Whether all programs of a command merely show what is there."""
    ran = list(programs(command[:COMMAND_CHARS_MAX]))
    return bool(ran) and all(_is_reader(name.split(" ")) for name in ran) and not any(written_paths(command))


def _is_reader(words: Sequence[str]) -> bool:
    return words[0] in READERS or (words[0] == "git" and words[-1] in _LOOKS_OF_GIT) or words[0] == "gh"


@lru_cache(maxsize=1_024)
def shows_status(command: str) -> bool:
    """Whether a command's exit status is not 0 if any part of it fails."""
    return _shows(command, list(steps(command[:COMMAND_CHARS_MAX])))


@lru_cache(maxsize=1_024)
def shows_end(command: str) -> bool:
    """Whether the end of a command's output is shown, and that of its last part only if the others did not fail."""
    parts = steps(command[:COMMAND_CHARS_MAX])
    return _shows(
        command, [step for step in parts if not (step.follows == "|" and step.words and step.words[0] in _TAILS)]
    )


def _shows(command: str, parts: Sequence[Step]) -> bool:
    if any(step.follows in ("||", "&") or (step.follows == "|" and "pipefail" not in command) for step in parts):
        return False
    ran = [step for step in parts if step.words]
    hidden = (step for step, after in pairwise(ran) if after.follows in (";", "\n"))
    return bool(ran) and all(step.words[0] in _HARMLESS for step in hidden)


@lru_cache(maxsize=4_096)
def bare_command(command: str) -> str:
    """A command on one line without what changes neither its work nor its outcome, to find runs of the same.

    That is the folder, environment and time limit in front of it, its redirections, and the filters of its output.
    """
    kept: list[str] = []
    for step in steps(command):
        if not step.words or step.words[0] in _HARMLESS:
            continue
        if kept and step.follows == "|" and step.words[0].rsplit("/", 1)[-1] in _FILTERS:
            continue
        if kept:
            kept.append(step.follows if step.follows in ("|", "||", "&&") else ";")
        kept += step.words
    return " ".join(" ".join(kept).split()) or " ".join(command.split())
