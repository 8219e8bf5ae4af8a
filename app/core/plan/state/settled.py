"""Lines of summaries that messages after them settle: failures, runs of checks, tasks, steps of a plan, next steps.

If another summary follows, so are announcements of the agent's next actions, and lines such as "Nothing was said or
done". The lines are left out as long as what settles them is shown with the summary. They are kept as checksums, so
that they quote nothing of a log and stay the same if the summary is shortened.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final
from zlib import crc32

from app.core.log.event import Event
from app.core.memory.cover import Summary
from app.core.memory.digest.calls import OPEN, CallWithResult, calls_in, parse_tasks, plan_of, tasks_in, unite_tasks
from app.core.memory.digest.checks import Check, check_of, checks_of, covers, is_same
from app.core.memory.digest.commands import programs
from app.core.memory.digest.outcomes import ERROR, OK, bare_command, outcomes_of
from app.core.memory.digest.sentences import sentences
from app.core.memory.extractive.sections import LATEST, NOTHINGS
from app.core.memory.extractive.statements import is_narration

# `-(?<=^-)` means `^-`, but is found faster.
FAILED_COMMAND: Final = re.compile(r"-(?<=^-) `([^`\n]{1,200})` failed when it was last run\b[^\n]*\n?", re.M)
FAILED_CHANGE: Final = re.compile(r"-(?<=^-) The last attempt to change (\S+) in this part failed\.\n?", re.M)
EDITED: Final = re.compile(r"-(?<=^-) (?:Changed|Wrote|Deleted) ", re.M)
"""Lines on changes in the words of a summary without a model; see `app/core/memory/extractive/work.py`."""
ANNOUNCED_CALLS: Final = 3
"""After this many later calls, the announced ones count as made."""
TURNS_PAST: Final = 3
"""After this many later turns, a failed command counts as settled if files were changed after it."""
UNRESOLVED_LINE: Final = re.compile(r"-(?<=^-) Not resolved when this part ended: [^\n]*\n?", re.M)
_ANNOUNCED: Final = re.compile(
    r"- (?:(?:First|Next|Now|Then),? )?(?:I['’]ll|I will|I['’]m going to|Let me|Let['’]s) ", re.I
)
"""A next step in the agent's own words, as opposed to a plan that a model wrote."""
STATE_MARK: Final = re.compile(r"^\[(\w+)\] ")
"""The state at the beginning of a command's line."""
_NOW: Final = re.compile(r"(?:Now|Next|First|Then),? [a-z]")
"""The beginning of an announcement without a pronoun."""
_HEADING: Final = re.compile(r"#{1,3} |<")
_DETAILS: Final = re.compile(r" # [^#\n]*$")
_PLANS: Final = frozenset({"### In Progress", "### Not Started"})
_EMPTY: Final = re.compile(
    rf"^(?:(?:### (?:In Progress|Not Started|Blocked)|## Next Steps|{LATEST})(?:\n(?=#|<|\n|\Z)|\Z)"
    r"|<(commands|tasks)>\n</\1>\n?)",
    re.M,
)
_EMPTY_BEFORE: Final = re.compile(
    r"^(?:### (?:In Progress|Not Started|Blocked)\n(?=#|<|\n|\Z)|<(commands|tasks)>\n</\1>\n?)", re.M
)
"""The headings that were left out in epochs of earlier versions."""
_NO_PROGRESS: Final = re.compile(r"#(?<=^#)# Progress\n(?=## |<|\n|\Z)", re.M)


class _Later:
    """The states that the calls of later messages show, and whether a turn ended in them."""

    def __init__(self, calls: Sequence[CallWithResult], *, ended_turn: bool) -> None:
        self._went_on = ended_turn or len(calls) >= ANNOUNCED_CALLS
        done = [call for call in calls if call.result is not None and call.result.body is not None]
        self._runs = [(call.command, call) for call in done if call.command and not call.is_rejected]
        found = (outcome for text, call in self._runs for outcome in outcomes_of(text, call.result))
        # A summary names a check in its fixed form.
        self._checks = [(check, one.state) for one in found if (check := check_of(one.check.text))]
        self._bare = {bare_command(text) for text, _ in self._runs}
        self._changed = {path for call in done for path in call.use.modified}
        self._has_plan = any(plan_of(call.event.arguments) and call.state == OK for call in done)
        tasks = (
            task
            for call in done
            if call.result is not None
            for task in tasks_in(call.tool, call.event.arguments, call.result.text)
            if call.state == OK
        )
        self._closed = {task.id for task in unite_tasks(tasks) if task.state and task.state not in OPEN}

    def settles(self, line: str, heading: str) -> bool:
        """Return whether a line of a summary, under its heading or tag, is about a state that changed or was tested."""
        if found := FAILED_COMMAND.match(line):
            return self._ran(found[1], has_failed=True)
        if found := FAILED_CHANGE.match(line):
            return found[1] in self._changed
        if UNRESOLVED_LINE.match(line):
            return bool(self._changed) or any(state == OK for _, state in self._checks)
        if heading == "<commands>":
            command = _DETAILS.sub("", STATE_MARK.sub("", line))
            return self._ran(command, has_failed=line.startswith(f"[{ERROR}] "))
        if heading == "<tasks>":
            return any(task.id in self._closed for task in parse_tasks(line))
        if heading == "## Next Steps":
            return self._went_on and _ANNOUNCED.match(line) is not None
        return heading in _PLANS and self._has_plan

    def _ran(self, command: str, *, has_failed: bool) -> bool:
        """Return whether a command, or a check that covers it, ran again with a known outcome.

        A command that failed is settled by one of its programs that succeeded.
        """
        checks = checks_of(command)
        if len(checks) == 1:
            return any(self._tells(later, state, checks[0]) for later, state in self._checks)
        names, bare = set(programs(command) if has_failed else ()), bare_command(command)
        again = has_failed and any(call.state == OK and names.intersection(programs(text)) for text, call in self._runs)
        same = (call for text, call in self._runs if bare_command(text) == bare) if bare in self._bare else ()
        return again or any(call.state in (OK, ERROR) for call in same)

    @staticmethod
    def _tells(later: Check, state: str, check: Check) -> bool:
        return (state == OK and covers(later, check)) or (state in (OK, ERROR) and is_same(later, check))


def settled_lines(summaries: Sequence[Summary], events: Sequence[Event]) -> tuple[int, ...]:
    """Return the checksums of the lines in summaries, given oldest first, that later ones or `events` settle.

    The events are newer than the summaries, and shown.
    """
    settled = [line for one, after in pairwise(summaries) for line in _settled_by(one, after, summaries[-1].last_turn)]
    stated = [found for one in summaries for found in _lines(one.text)]
    if stated and (calls := calls_in(events)):
        later = _Later(calls, ended_turn=events[0].turn < events[-1].turn)
        settled += [line for heading, line in stated if later.settles(line, heading)]
    return tuple(dict.fromkeys(map(_checksum, settled)))


def _settled_by(summary: Summary, after: Summary, last_turn: int) -> Iterator[str]:
    """Yield the lines that the next summary, or the turns up to the newest summary's last one, settle."""
    is_past = last_turn - summary.last_turn >= TURNS_PAST and EDITED.search(after.text)
    for heading, line in _lines(summary.text):
        announces = _announces(line) if heading == LATEST else heading == "## Next Steps" and _ANNOUNCED.match(line)
        if announces or line.startswith(NOTHINGS) or (is_past and FAILED_COMMAND.match(line)):
            yield line


def _announces(line: str) -> bool:
    """Return whether a message of the agent only announces its next actions, without a reason."""
    said = list(sentences(line.removeprefix("- ")))
    return all(is_narration(one) or _NOW.match(one) for one in said)


def without_lines(text: str, checksums: Collection[int], *, precise: bool) -> str:
    """Return a summary's text without lines, given by their checksums, and without headings that are left empty.

    `precise` is as in `Fold`.
    """
    if not checksums:
        return text
    kept = "\n".join(line for line in text.split("\n") if not line or _checksum(line) not in checksums)
    if not precise:
        return _NO_PROGRESS.sub("", _EMPTY_BEFORE.sub("", kept))
    return _NO_PROGRESS.sub("", _EMPTY.sub("", kept)).rstrip("\n")


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a summary, each with the heading or tag above it."""
    heading = ""
    for line in text.split("\n"):
        if _HEADING.match(line):
            heading = line.strip()
        elif line:
            yield heading, line


def _checksum(line: str) -> int:
    return crc32(line.encode())
