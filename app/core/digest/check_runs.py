"""The newest run of each check in a span, and how it ended."""

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

    `told` are the tests that failed, or the first error line, or the counts of what passed. `folder` is where it ran if
    the command says so, `seq` is its call's. `is_before_edits` says that files were modified after it.
    """

    text: str
    state: str
    told: str = ""
    folder: str = ""
    seq: int = 0
    is_before_edits: bool = False

    def line(self, beside: str = "") -> str:
        """The run as a line of a list of commands; what a shell takes for a comment is no part of the command.

        What is told of it in the text beside the list is not repeated.
        """
        told = self.told if self.told not in beside else ""
        about = [
            *([f"failed: {told}" if self.state == ERROR else told] if told else []),
            *([BEFORE_EDITS] if self.is_before_edits and self.state != UNKNOWN else []),
        ]
        stated = "" if self.state == UNKNOWN else f"[{self.state}] "
        return f"{stated}{self.text}{' # ' if about else ''}{'; '.join(about)}"


def run_of(outcome: Outcome, seq: int, *, is_before_edits: bool) -> CheckRun:
    """The run that an outcome is of."""
    check, state, told = outcome
    return CheckRun(check.text, state, told, check.folder, seq, is_before_edits)


def runs_in(commands: Iterable[tuple[str, str, int]]) -> Iterator[CheckRun]:
    """The runs that commands are, each given by its text, its state and its seq, if it checks one thing only."""
    for text, state, seq in commands:
        checks = checks_of(text)
        if len(checks) == 1 and state != REJECTED:
            yield CheckRun(checks[0].text, state, "", checks[0].folder, seq)


def standing(runs: Iterable[CheckRun]) -> tuple[CheckRun, ...]:
    """The newest run of each check in order, at most CHECKS_MAX.

    A check also leaves once a later one that covers it is known to have passed.
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


def before_edits(runs: Sequence[CheckRun]) -> Iterator[CheckRun]:
    """The runs as they are known once files were modified."""
    return (replace(run, is_before_edits=True) for run in runs)
