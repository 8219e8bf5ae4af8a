"""The newest run of each check in a span, and its outcome."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.digest.checks import Check, check_of, checks_of, covers, is_same
from app.core.digest.outcomes import ERROR, OK, REJECTED, UNKNOWN, Outcome

CHECKS_MAX: Final = 30
BEFORE_EDITS: Final = "before the last edits"


@dataclass(frozen=True, slots=True)
class CheckRun:
    """The newest run of a check; `state` is `ok`, `error` or `unknown`.

    `told` is its report: the failed tests, the first error line, or the counts of passes. `folder` is the folder it ran
    in if the command names it, `seq` is its call's. `is_before_edits`: files were modified after it.
    """

    text: str
    state: str
    told: str = ""
    folder: str = ""
    seq: int = 0
    is_before_edits: bool = False

    def line(self, body: str = "") -> str:
        """Return the run as a line of a list of commands, with details as a shell comment.

        The report is left out if the text around the list contains it.
        """
        told = self.told if self.told not in body else ""
        about = [
            *([f"failed: {told}" if self.state == ERROR else told] if told else []),
            *([BEFORE_EDITS] if self.is_before_edits and self.state != UNKNOWN else []),
        ]
        stated = "" if self.state == UNKNOWN else f"[{self.state}] "
        return f"{stated}{self.text}{' # ' if about else ''}{'; '.join(about)}"


def run_of(outcome: Outcome, seq: int, *, is_before_edits: bool) -> CheckRun:
    """Return the run that an outcome describes."""
    check, state, told = outcome
    return CheckRun(check.text, state, told, check.folder, seq, is_before_edits)


def runs_in(commands: Iterable[tuple[str, str, int]]) -> Iterator[CheckRun]:
    """Yield the run of each command that checks one thing only, given by its text, its state and its seq."""
    for text, state, seq in commands:
        checks = checks_of(text)
        if len(checks) == 1 and state != REJECTED:
            yield CheckRun(checks[0].text, state, "", checks[0].folder, seq)


def newest_runs(runs: Iterable[CheckRun]) -> tuple[CheckRun, ...]:
    """Return the newest run of each check in order, at most CHECKS_MAX.

    A check also leaves once a later one that covers it has passed.
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


def mark_before_edits(runs: Sequence[CheckRun]) -> Iterator[CheckRun]:
    """Return the runs, marked as older than the last edits."""
    return (replace(run, is_before_edits=True) for run in runs)
