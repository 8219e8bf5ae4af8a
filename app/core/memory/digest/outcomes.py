"""Outcomes of commands, and the states of checks such as tests and builds."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from app.core.log.event import Event
from app.core.memory.digest.checks import Check, check_of, checks_of, covers, is_same
from app.core.memory.digest.commands import Step, programs, steps, written_paths
from app.core.memory.digest.sentences import is_refused, is_rejected, shorten

OK, ERROR, REJECTED, UNKNOWN = "ok", "error", "rejected", "unknown"

CHECK_CHARS_READ_MAX: Final = 2_000
"""The maximum characters read of a command to find the programs it runs."""
RESULT_END_CHARS: Final = 2_000
"""The characters read at each end of a result."""
_READERS_WORDS: Final = (
    "awk cat column cut diff file find grep head jq less ls nl rg sed sort stat tail tr tree uniq wc which"
)
READERS: Final = frozenset(_READERS_WORDS.split())
"""Programs whose output is existing text, which may include old errors."""
_STAGING: Final = (["git", "add"], ["git", "reset"])
_HELPERS_WORDS: Final = "chmod cp mkdir mv rm rmdir tee touch xargs kill pkill sleep test [ [["
HELPERS: Final = READERS | frozenset(_HELPERS_WORDS.split())
"""Programs that prepare the work of another, or cut its output."""

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
"""The end of the output of a successful test, linter or build."""
_RUNNERS_LINES: Final = re.compile(
    r"^(?:\[[\w:.-]{1,40}\] (?:\$ [^\n]*|Finished in [\d.]+m?s)|Finished in [\d.]+m?s|Done in [\d.]+m?s\.?)\n?", re.M
)
"""Lines that a task runner, such as mise or yarn, prints about its tasks, often after their output."""
GREEN_TAIL_CHARS: Final = 300
GREPS: Final = frozenset({"grep", "rg", "egrep", "ag"})
NAME_CHARS_MAX: Final = 80
NAMES_MAX: Final = 6
ERROR_CHARS_MAX: Final = 120
_COUNT: Final = re.compile(r"\b(\d{1,6}) (passed|failed|errors?|skipped|passing|failing)\b")
_FAILING: Final = re.compile(
    r"^\s{0,12}--- FAIL: (\S{1,200})|^FAILED (\S{1,200})|^test (\S{1,200}) \.\.\. FAILED|^\s{0,8}● (\S[^\n]{0,150})"
    r"|^\s{0,8}[✕✗×] (\S[^\n]{0,150}?)(?: \(\d+ ?m?s\))?$|^rspec (\./\S{1,200})|^not ok \d{1,6} (?:- )?([^\n]{1,150})",
    re.M,
)
"""Lines that name a failed test, of Go, pytest, Rust, Jest, Vitest, RSpec and TAP."""
_ERROR_LINE: Final = re.compile(
    r"^[ \t]{0,12}[\w./-]{1,200}\.\w{1,5}[:(]\d{1,6}[^\n]{1,300}"
    r"|^[^\n]{0,200}\b(?:error|fatal|panic)\b(?: [A-Z]{1,4}\d{1,6}|\[\w{1,20}\])?:[^\n]{1,300}"
    r"|^FAIL[ \t]+\S[^\n]{0,200}"
    r"|^[^\n]{0,200}(?:directory not found|command not found|No such file or directory)[^\n]{0,100}",
    re.M | re.I,
)
_TELLING: Final = re.compile(r"\b(?:error|fail|fatal|panic|got|want|expect|undefined|cannot|not|missing|invalid)", re.I)
"""Words of a line about an error, unlike those of one that a test logs with its place."""
_CONFLICT: Final = re.compile(r"^CONFLICT \([^)\n]{1,40}\): ([^\n]{1,200})", re.M)
CONFLICTS_MAX: Final = 4
_NO_TESTS: Final = re.compile(r"no tests (?:to run|ran|found|collected)", re.I)
_SOME_TESTS: Final = re.compile(
    r"^(?:--- PASS|ok[ \t]+\S+[ \t]+\S+(?: \(cached\))?$)|\b[1-9]\d{0,5} (?:tests? )?pass", re.M
)
_RED_LINES: Final = r"^[\w./-]{1,200}\.\w{1,5}[:(]\d{1,6}[:,]\d{1,6}\)?: |^error\b|\berror [A-Z]{1,4}\d{1,6}:"
_RED_OF: Final = {
    "test": re.compile(
        r"^\s{0,8}--- FAIL\b|^FAIL(?:ED)?\b|\b[1-9]\d{0,5} (?:tests? )?(?:failed|failing|failures?|errors?)\b"
        r"|\bFAILED\b|\[build failed\]|^panic: ",
        re.M,
    ),
    "lint": re.compile(
        rf"{_RED_LINES}|\b[1-9]\d{{0,5}} (?:issues?|problems?|errors?|offenses?)\b|would reformat", re.M | re.I
    ),
    "types": re.compile(rf"{_RED_LINES}|: error:|\b[1-9]\d{{0,5}} errors?\b", re.M | re.I),
    "build": re.compile(rf"{_RED_LINES}|^make: \*\*\*|\bBUILD FAILED\b|^\[ERROR\]|: error:", re.M | re.I),
}
"""Lines by which a failure is attributed to a test, a linter, a type checker or a build."""
SILENT: Final = frozenset({"build", "types"})
"""Kinds of checks that may print nothing on success."""
_CANNOT_READ: Final = re.compile(
    r"(?:fatal|error): |[\w./-]{1,40}: [^\n]{0,200}(?:No such file|not found|Permission denied|cannot|invalid)", re.I
)
"""The first line of a reader's output when it could not read."""
_HARMLESS: Final = frozenset({"cd", "export", "set", "source", ".", "echo", "printf", "sleep", "true", "pwd", "clear"})
_FILTERS: Final = READERS | {"tee", "xargs", "more"}
_TAILS: Final = frozenset({"tail", "tee", "cat"})
_GIT_READS: Final = frozenset(
    ["blame", "branch", "diff", "grep", "log", "ls-files", "ls-tree", "reflog", "remote", "rev-parse", "show", "status"]
)
_GIT_CHANGES: Final = re.compile(
    r"branch (?:.* )?-(?:[dDmMcCfu]|-delete|-move|-copy|-force|-unset-upstream|-edit-description)(?: |$)"
    r"|branch (?!(?:.* )?-(?:l|-list|-(?:no-)?contains|-(?:no-)?merged|-points-at)(?: |$))(?:.* )?\w[\w./-]*(?: |$)"
    r"|remote (?:add|rename|remove|rm|set-head|set-branches|set-url|prune|update)(?: |$)"
    r"|reflog (?:expire|delete)(?: |$)"
)
"""Arguments with which a reading subcommand of git changes something."""
_GH_READS: Final = re.compile(
    r"(?:pr (?:view|list|diff|status|checks)|issue (?:view|list|status)|run (?:view|list|watch)|repo (?:view|list)"
    r"|auth status|search|api)(?: |$)"
)
_GH_REPOSITORY: Final = re.compile(r"^(?:-R|--repo)[ =]\S+ ")
_GH_METHOD: Final = re.compile(r" (?:-X|--method)[ =]?(\w+)")
_GH_FIELDS: Final = re.compile(r" (?:-[fF]|--(?:raw-)?field|--input)")


class Outcome(NamedTuple):
    """The outcome of a check; `report` are the tests that failed, or the first error line, or the counts of passes."""

    check: Check
    state: str
    report: str


def state_of(result: Event | None, command: str | None = None) -> str:
    """Return the outcome of a call: `ok`, `error`, `rejected` by the user, or `unknown` if the log does not show it.

    The status of a pipe is its last program's, and `||`, `;` and `&` hide earlier failures: without a sign of failure
    in its output, the outcome of such a command is unknown, unless the end of its output is shown and reports success.
    """
    return UNKNOWN if result is None else result.derive(_state_of, command)


def _state_of(result: Event, command: str | None) -> str:
    if is_rejected(result):
        return REJECTED
    text = result.text
    codes = _EXIT.findall(text[:300] + "\n" + text[-300:])
    if result.is_error or is_refused(result) or (codes and codes[-1].lstrip("-").strip("0")):
        return ERROR
    if command is None:
        return OK
    if reads_only(command):
        return ERROR if _CANNOT_READ.match(text.lstrip()) else OK if shows_status(command) else UNKNOWN
    sample, runs_check = text[:RESULT_END_CHARS] + "\n" + text[-RESULT_END_CHARS:], is_check(command)
    if runs_check and _RED.search(sample):
        return ERROR
    if runs_check and _reports_success(command, text):
        return OK
    return ERROR if _BROKEN.search(sample) else OK if shows_status(command) else UNKNOWN


def is_check(command: str) -> bool:
    """Return whether a command tests, builds, lints or checks types."""
    return bool(checks_of(command[:CHECK_CHARS_READ_MAX]))


def outcomes_of(command: str, result: Event | None) -> Sequence[Outcome]:
    """Return the outcome of each check of a command.

    If a chain failed, the failed check is the one whose failure is in the output. Those before it passed if `&&` or `|`
    chains them, else they are unknown; later ones are left out. Without such output a check that is alone has failed,
    and others are unknown. A command that was refused ran no check.
    """
    if result is None:
        return [Outcome(check, UNKNOWN, "") for check in checks_of(command[:CHECK_CHARS_READ_MAX])]
    return result.derive(_outcomes_of, command)


def _outcomes_of(result: Event, command: str) -> Sequence[Outcome]:
    checks = checks_of(command[:CHECK_CHARS_READ_MAX])
    if not checks or is_refused(result):
        return ()
    state, text = state_of(result, command), result.text
    if state == OK and _NO_TESTS.search(text) and not _SOME_TESTS.search(text):
        state = UNKNOWN
    if state != ERROR:
        counts = counts_of(text) if state == OK and len(checks) == 1 else ""
        return [Outcome(check, state, counts) for check in checks]
    red = [number for number, check in enumerate(checks) if _RED_OF[check.kind].search(text)]
    failed = next((number for number in red if checks[number].kind == "test"), red[-1] if red else -1)
    if failed < 0:
        working = [s for s in steps(command) if s.words and s.separator != "|" and s.words[0] not in _HARMLESS]
        if len(checks) > 1 or len(working) != 1:
            return [Outcome(check, UNKNOWN, "") for check in checks]
        return [Outcome(checks[0], ERROR, _failure(text, checks[0].kind))]
    parts = steps(command[:CHECK_CHARS_READ_MAX])
    passed: list[Outcome] = []
    for number, check in enumerate(checks[:failed]):
        chained = all(step.separator in ("&&", "|") for step in parts[check.at + 1 : checks[number + 1].at + 1])
        passed.append(Outcome(check, OK if chained else UNKNOWN, ""))
    return [*passed, Outcome(checks[failed], ERROR, _failure(text, checks[failed].kind))]


def error_in(text: str) -> str:
    """Return the conflicts that git printed, else the first line about an error; empty without either."""
    conflicts = list(dict.fromkeys(_CONFLICT.findall(text)))
    lines = (found[0] for found in _ERROR_LINE.finditer(text))
    first = next(lines, "")
    line = first if _TELLING.search(first) else next(filter(_TELLING.search, lines), first)
    return "; ".join(conflicts[:CONFLICTS_MAX]) or shorten(" ".join(line.split()), ERROR_CHARS_MAX)


def _failure(text: str, kind: str) -> str:
    """Return the names of the tests that failed, else the first line with an error; empty without either."""
    names = list(dict.fromkeys(next(filter(None, found)) for found in _FAILING.findall(text)))
    whole = set(names)
    names = [name for name in names if name.split("/", 1)[0] == name or name.split("/", 1)[0] not in whole]
    if names:
        shown = ", ".join(shorten(name, NAME_CHARS_MAX) for name in names[:NAMES_MAX])
        return shown + (f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else "")
    line = " ".join(_line_at(text, _RED_OF[kind].search(text)).split())
    return error_in(text) or shorten(line, ERROR_CHARS_MAX)


def _line_at(text: str, found: re.Match[str] | None) -> str:
    return "" if found is None else text[: found.end()].rpartition("\n")[2] + text[found.end() :].partition("\n")[0]


def counts_of(text: str) -> str:
    """Return the last counts of tests in a program's output, such as `3 failed, 39 passed`."""
    found = {word: number for number, word in _COUNT.findall(text[-RESULT_END_CHARS:])}
    return ", ".join(f"{number} {word}" for word, number in found.items())


def _reports_success(command: str, text: str) -> bool:
    """Return whether a check's output reports success at its shown end, or is empty where that means success."""
    parts = steps(command[:CHECK_CHARS_READ_MAX])
    kept = [step for step in parts if not (step.separator == "|" and _passes_end(step, text))]
    if not _shows(command, kept):
        return False
    if _GREEN.search(_RUNNERS_LINES.sub("", text[-RESULT_END_CHARS:])[-GREEN_TAIL_CHARS:]):
        return True
    # A build that fails prints an error to one of the streams, if nothing filters it out.
    filtered = any(step.separator == "|" and step.words and step.words[0] in GREPS for step in parts)
    is_silent = all(check.kind in SILENT for check in checks_of(command[:CHECK_CHARS_READ_MAX]))
    return is_silent and not text.strip() and "2>&1" in command and "timeout" not in command and not filtered


def _passes_end(step: Step, text: str) -> bool:
    """Return whether a filter's output includes the end of its input, or each line on a failure."""
    if not step.words or step.words[0] in _TAILS:
        return bool(step.words)
    if step.words[0] == "head":
        given = next((found[1] for word in step.words[1:] if (found := re.fullmatch(r"-?n?(\d{1,6})", word))), "10")
        return text.count("\n") + 1 < int(given)
    if step.words[0] in GREPS:
        pattern = " ".join(step.words[1:])
        return bool(re.search(r"fail", pattern, re.I)) and not re.search(r"(?:^| )-\w*[vcqlo]", pattern)
    return False


@lru_cache(maxsize=1_024)
def reads_only(command: str) -> bool:
    """Return whether all programs of a command only read; False for a command without programs."""
    ran = list(programs(command[:CHECK_CHARS_READ_MAX]))
    if not ran or not all(_is_reader(name.split(" ")) for name in ran):
        return False
    return not _changes(command) and not any(written_paths(command))


@lru_cache(maxsize=1_024)
def is_idle(command: str) -> bool:
    """Return whether a command is not worth reporting: its programs, if any, read or prepare other work."""
    ran = [name.split(" ") for name in programs(command[:CHECK_CHARS_READ_MAX])]
    return all(_is_reader(words) or words[0] in HELPERS or words in _STAGING for words in ran) and not _changes(command)


def _is_reader(words: Sequence[str]) -> bool:
    """Return whether a program reads, unless `_changes` says otherwise of its arguments."""
    return words[0] in READERS or (words[0] == "git" and words[-1] in _GIT_READS) or words[0] == "gh"


def _changes(command: str) -> bool:
    """Return whether `gh`, or a subcommand of git that can read, is given arguments with which it changes something."""
    return any(is_change(step.words) for step in steps(command[:CHECK_CHARS_READ_MAX]) if len(step.words) > 1)


def is_change(words: Sequence[str]) -> bool:
    """Return whether `gh`, or `git branch`, `remote` or `reflog`, is given arguments that change something."""
    program, given = words[0].rpartition("/")[2], " ".join(words[1:])[:CHECK_CHARS_READ_MAX]
    if program != "gh":
        return program == "git" and bool(_GIT_CHANGES.match(given))
    given = _GH_REPOSITORY.sub("", given)
    if not given.startswith("api "):
        return not _GH_READS.match(given)
    method = _GH_METHOD.search(given)
    return method[1].upper() != "GET" if method else bool(_GH_FIELDS.search(given))


@lru_cache(maxsize=1_024)
def shows_status(command: str) -> bool:
    """Return whether a command's exit status is not 0 if any part of it fails."""
    return _shows(command, steps(command[:CHECK_CHARS_READ_MAX]))


def _shows(command: str, parts: Sequence[Step]) -> bool:
    if any(step.separator in ("||", "&") or (step.separator == "|" and "pipefail" not in command) for step in parts):
        return False
    ran = [step for step in parts if step.words]
    hidden = (step for step, after in pairwise(ran) if after.separator in (";", "\n"))
    return bool(ran) and all(step.words[0] in _HARMLESS for step in hidden)


@lru_cache(maxsize=4_096)
def bare_command(command: str) -> str:
    """Return a command on one line without parts that do not affect its work or outcome, for finding repeated runs.

    These are the folder, environment and time limit before it, its redirections, and the filters of its output.
    """
    kept: list[str] = []
    for step in steps(command):
        if not step.words or step.words[0] in _HARMLESS:
            continue
        if kept and step.separator == "|" and step.words[0].rsplit("/", 1)[-1] in _FILTERS:
            continue
        if kept:
            kept.append(step.separator if step.separator in ("|", "||", "&&") else ";")
        kept += step.words
    return " ".join(" ".join(kept).split()) or " ".join(command.split())


CHECKS_MAX: Final = 30
BEFORE_CHANGES: Final = "before the code last changed"
"""The mark of a check after which code was edited, or brought in by a pull or a rebase."""


@dataclass(frozen=True, slots=True)
class CheckRun:
    """The newest run of a check; `state` is `ok`, `error` or `unknown`.

    `told` is its report: the failed tests, the first error line, or the counts of passes. `folder` is the folder it ran
    in if the command names it, `seq` is its call's. `is_before_changes`: the code changed after it.
    """

    text: str
    state: str
    told: str = ""
    folder: str = ""
    seq: int = 0
    is_before_changes: bool = False

    def line(self, other_text: str = "") -> str:
        """Return the run as a line of a list of commands, with details as a shell comment.

        The report is left out if the summary's `other_text` contains it.
        """
        told = self.told if self.told not in other_text else ""
        about = [
            *([f"failed: {told}" if self.state == ERROR else told] if told else []),
            *([BEFORE_CHANGES] if self.is_before_changes and self.state != UNKNOWN else []),
        ]
        stated = "" if self.state == UNKNOWN else f"[{self.state}] "
        return f"{stated}{self.text}{' # ' if about else ''}{'; '.join(about)}"


def runs_in(commands: Iterable[tuple[str, str, int]]) -> Iterator[CheckRun]:
    """Yield the run of each command that checks one thing only, given by its text, its state and its seq."""
    for text, state, seq in commands:
        checks = checks_of(text)
        if len(checks) == 1 and state != REJECTED:
            yield CheckRun(checks[0].text, state, "", checks[0].folder, seq)


def newest_runs(runs: Iterable[CheckRun]) -> tuple[CheckRun, ...]:
    """Return the newest run of each check in order, at most CHECKS_MAX.

    A check is left out if a later one that covers it has passed.
    """
    kept: list[CheckRun] = []
    later: list[tuple[Check, str]] = []
    for run in reversed(tuple(runs)):
        check = check_of(run.text)
        if check is not None:
            check = check._replace(folder=run.folder)
            if not any(is_same(new, check) or (state == OK and covers(new, check)) for new, state in later):
                kept.append(run)
                later.append((check, run.state))
    return tuple(reversed(kept[:CHECKS_MAX]))
