"""The work of a span in plain sentences: files changed, tools called, and failed commands, edits, checks and tools.

The sentences are built from the agent's own calls and their outcomes. Tool output contributes only the names of failed
tests, first error lines and merge conflicts. Lines on calls of tools for neither files nor a shell tell an agent which
of many things it has already looked up or changed, so they are kept when summaries are merged.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType, Json
from app.core.memory.digest.appendix import REMOVED_MARK
from app.core.memory.digest.calls import CallWithResult, calls_in
from app.core.memory.digest.commands import programs, removed_paths, replaced_paths, written_paths
from app.core.memory.digest.files import (
    Undone,
    changes_nothing,
    distinct_files,
    files_of,
    has_committed,
    is_temporary,
    single_edit,
    undone_changes,
    writes_whole,
)
from app.core.memory.digest.outcomes import (
    BEFORE_CHANGES,
    ERROR,
    OK,
    REJECTED,
    CheckRun,
    bare_command,
    error_in,
    is_check,
    is_idle,
)
from app.core.memory.digest.record import COMMAND_CHARS_SHOWN_MAX
from app.core.memory.digest.sentences import shorten
from app.core.memory.extractive.changes import FILE_LINE, FileChange, by_commands, definitions, parse_changes
from app.core.memory.extractive.sections import SectionLine, done_lines

ARGUMENTS_CHARS_MAX: Final = 120
"""The length to which the arguments of one call are shortened."""
LINE_CHARS_MAX: Final = 240
"""The length of all arguments in a line, above which those of the oldest calls are left out."""
OMITTED: Final = "…"

_CALL_LINE: Final = re.compile(r"^- Called ([^\s,:]{1,200})(?: x(\d{1,6}))?(?:: ([^\n]{1,1000}))?\.$", re.M)
_EARLIER: Final = re.compile(r"^- Called ([^\s,:]{1,200}) with ([^\n]{1,200})\.$", re.M)
"""One call in summaries of 0.3."""
_EARLIER_SUM: Final = re.compile(r"^- Called ([^\n:]{1,800}, [^\n:]{1,800}?)(?: and \d{1,6} more)?\.$", re.M)
"""Counts by tool, in summaries of 0.3, that include the calls listed singly before."""
_NUMBERED: Final = re.compile(r"(|.*?[^\d.,:/])(\d{1,15})(?: to (\d{1,15}))?")
"""Arguments that end with a whole number, or with the first and the last of successive ones."""


@dataclass(slots=True)
class ToolCalls:
    """The calls of one tool: their number, the seq of the newest, and the arguments of each, oldest first."""

    times: int = 0
    seq: int = 0
    arguments: list[str] = field(default_factory=list)

    def add(self, times: int, seq: int, arguments: str) -> None:
        """Count more calls; successive numbers become a range, and repeated arguments are listed once."""
        self.times += times
        self.seq = max(self.seq, seq) if self.seq > 0 else seq  # as in FileChange
        if not arguments or arguments in self.arguments:
            return
        joined = _join(self.arguments[-1], arguments) if self.arguments else None
        if joined is not None:
            self.arguments[-1] = joined
        else:
            self.arguments.append(arguments)

    def line(self, tool: str) -> SectionLine:
        """Describe the calls in one line."""
        times = f" x{self.times}" if self.times > 1 else ""
        shown: list[str] = []
        room = LINE_CHARS_MAX
        for one in reversed(self.arguments):
            room -= len(one) + 2
            if room < 0 or one == OMITTED:
                shown.append(OMITTED)
                break
            shown.append(one)
        return SectionLine(f"Called {tool}{times}{': ' if shown else ''}{'; '.join(reversed(shown))}.", self.seq)


def parse_calls(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield the calls in lines of earlier summaries, oldest first: tool, times, a negative seq, and arguments.

    A line yields each of its arguments once; the first has the number of all its calls.
    """
    forms = (_CALL_LINE, _EARLIER, _EARLIER_SUM)
    matches = sorted((one for form in forms for one in form.finditer(text)), key=re.Match.start)
    listed: Counter[str] = Counter()
    for match in matches:
        seq = match.start() - len(text)
        if match.re is _EARLIER:
            listed[match[1]] += 1
            yield match[1], 1, seq, match[2]
        elif match.re is _EARLIER_SUM or not match[3]:
            for one in match[0].removeprefix("- Called ").removesuffix(".").split(", "):
                tool, _, times = one.partition(" and ")[0].partition(" x")
                if count := int(times or 1) - listed.pop(tool, 0):
                    yield tool, count, seq, ""
        else:
            for number, one in enumerate(match[3].split("; ")):
                yield match[1], 0 if number else int(match[2] or 1), seq, one


def plain_arguments(arguments: Mapping[str, Json]) -> str:
    """Return the plain arguments of a call, as the agent wrote them, on one line without a semicolon."""
    given = {name: value for name, value in arguments.items() if isinstance(value, str | int | float)}
    plain = [f"{name} {' '.join(str(value).split())}" for name, value in given.items() if value not in ("", False)]
    return shorten(", ".join(plain), ARGUMENTS_CHARS_MAX).replace("; ", ", ")


def _join(last: str, following: str) -> str | None:
    """Return both arguments as one range; None if they are not successive numbers of the same thing."""
    ours, theirs = _NUMBERED.fullmatch(last), _NUMBERED.fullmatch(following)
    if ours is None or theirs is None or ours[1] != theirs[1]:
        return None
    end = ours[3] or ours[2]
    if int(theirs[2]) != int(end) + 1 or any(len(one) > 1 and one[0] == "0" for one in (ours[2], theirs[2])):
        return None
    return f"{ours[1]}{ours[2]} to {theirs[3] or theirs[2]}"


_CONFLICTING: Final = ("git merge", "git rebase", "git pull", "git cherry-pick", "git revert")
"""Commands whose conflicts are resolved by the next commit."""

_ASKING: Final = re.compile(r"(?:^|_)(?:get|look_?up|query|check|calculate|describe|show|count)(?:$|_)", re.I)
"""Names of tools that probably look something up, whose calls are listed after others; they may count as changes
elsewhere."""
_END_OF_FILES: Final = re.compile(r"(?<=</modified-files>)")
"""The end of the list that tells which file a name in the text before it means."""
_UNREAD: Final = re.compile(r"\bnot been read\b|\bmodified since\b")
"""A harness's words for an edit that it refused because the file must be read first."""
_EXPECTED: Final = re.compile(
    r"\b(?:this|that|it|failure|error)(?: is| was|['’]s) (?!not)(?:\w{2,12} )?\W{0,3}expected\b(?! to\b)", re.I
)
"""An agent's words for a failure that shows no fault."""


@dataclass(slots=True)
class _Attempt:
    """The last attempt at one thing: its outcome and its seq."""

    state: str
    seq: int


class SpanWork:
    """The calls of a span that did more than look, with their outcomes: file changes, commands and other calls.

    Changes are kept by the file's name as it is shown, edits by path, commands and their errors by `bare_command`,
    programs with the outcome of their last run, single edits by (path, old text, new text).
    """

    def __init__(self, events: Sequence[Event], previous_text: str = "", files: Sequence[str] = ()) -> None:
        """Count the calls of the events, together with those and the changes in earlier summaries.

        `files` are the paths of the files that were changed or read in all of them.
        """
        self._files = distinct_files([*dict.fromkeys(files)])
        # An earlier summary may have had no room for the line on a file.
        self._counts_all = not previous_text
        self._changes: dict[str, FileChange] = {}
        self._edits: dict[str, _Attempt] = {}
        self._uncommitted: list[tuple[str, FileChange]] = []
        self._committed: list[list[tuple[str, FileChange]]] = []
        self._read: set[str] = set()
        self._replaced: dict[tuple[str, str, str], FileChange] = {}
        self._paths: dict[str, set[str]] = {}
        self._commands: dict[str, tuple[str, _Attempt]] = {}
        self._errors: dict[str, str] = {}
        self._programs: dict[str, str] = {}
        self._tools: dict[str, _Attempt] = {}
        self._called: dict[str, ToolCalls] = {}
        self._texts = [(e.seq, e.text) for e in events if e.type is EventType.ASSISTANT_MESSAGE]
        earlier = "\n".join(map(self._done_lines_of, _END_OF_FILES.split(previous_text)))
        for name, change in parse_changes(earlier):
            self._merge_change(name, change)
        for told in parse_calls(earlier):
            self._count_call(*told)
        for call in calls_in(events):
            self._add_call(call)

    def _add_call(self, call: CallWithResult) -> None:
        tool, state, output = call.tool or "a tool", call.state, "" if call.result is None else call.result.text
        if state == REJECTED:
            return  # it had no effect, and is quoted with the user's words
        if call.command is not None:
            if not call.is_refused:
                self._add_command(call.command, state, call.seq, output)
            return
        arguments = call.event.arguments
        use = files_of(call.tool, arguments)
        for path in use.modified:
            if not (call.is_refused and _UNREAD.search(output)):
                self._edits[path] = _Attempt(state, call.seq)
            if state == OK and not self._takes_back(path, arguments):
                change = FileChange(is_new=writes_whole(arguments) and path not in self._read)
                change.add(1, call.seq, definitions(arguments))
                name = self._shown_name(path)
                if name in self._changes:
                    self._changes[name].forget(arguments)
                self._add_uncommitted(path, change)
                if edit := single_edit(arguments):
                    self._replaced[path, *edit] = change
        self._read.update(use.read)
        if not (use.modified or use.read or changes_nothing(tool)):
            self._tools[tool] = _Attempt(state, call.seq)
            if state != ERROR:
                self._count_call(tool, 1, call.seq, plain_arguments(arguments))

    def _takes_back(self, path: str, arguments: Mapping[str, Json]) -> bool:
        """Undo the uncommitted change of which a call's edit is the exact inverse; return whether there is one."""
        edit = single_edit(arguments)
        earlier = self._replaced.pop((path, edit[1], edit[0]), None) if edit else None
        if earlier is None or (path, earlier) not in self._uncommitted:
            return False
        self._uncommitted.remove((path, earlier))
        self._changes[self._shown_name(path)].take_back(earlier)
        return True

    def _done_lines_of(self, previous: str) -> str:
        """Return the lines on finished work in one earlier summary, with its files named as in this one."""
        listed = previous.partition("<modified-files>\n")[2].replace(f"{REMOVED_MARK}\n", "\n").splitlines()

        def renamed(told: re.Match[str]) -> str:
            found = [path for path in listed if path.endswith(f"/{told[2]}")]
            start, end = (place - told.start() for place in told.span(2))
            return f"{told[0][:start]}{self._shown_name(found[0])}{told[0][end:]}" if len(found) == 1 else told[0]

        return FILE_LINE.sub(renamed, done_lines(previous))

    def _shown_name(self, path: str) -> str:
        """Return a file's own name, with the folders that tell it from other known files of this name."""
        *folders, name = path.rstrip("/").split("/")
        while folders and sum(f"/{file}".endswith(f"/{name}") for file in self._files) > 1:
            name = f"{folders.pop()}/{name}"
        return name or path

    def _add_uncommitted(self, path: str, change: FileChange) -> None:
        """Add a change that is not committed yet."""
        name = self._shown_name(path)
        self._merge_change(name, change)
        self._uncommitted.append((path, change))
        self._paths.setdefault(name, set()).add(path)

    def _merge_change(self, name: str, change: FileChange) -> None:
        known = self._changes.setdefault(name, FileChange(is_new=change.is_new))
        if change.is_gone:
            known.is_gone, known.seq = True, change.seq
        else:
            known.add(change.times, change.seq, change.names, change.commands)
            known.has_more |= change.has_more

    def _count_call(self, tool: str, times: int, seq: int, arguments: str) -> None:
        self._called.setdefault(tool, ToolCalls()).add(times, seq, arguments)

    def _add_command(self, command: str, state: str, seq: int, output: str) -> None:
        for program in programs(command):
            self._programs[program] = state
        if not is_check(command):
            bare = bare_command(command)
            self._commands[bare] = (self._commands.get(bare, (command,))[0], _Attempt(state, seq))
            self._errors[bare] = error_in(output)
        taken_back = list(undone_changes(command, state))
        for back in taken_back:
            self._revert(back)
        if state == OK and not taken_back:
            self._add_written(command, seq)
        for gone in removed_paths(command) if state == OK else ():
            self._remove(gone, seq)
        if has_committed(command, output):
            self._programs.update(dict.fromkeys(_CONFLICTING, OK))
            self._committed.append(self._uncommitted)
            self._uncommitted = []

    def _add_written(self, command: str, seq: int) -> None:
        """Note the files of the work that a command wrote; one that it replaced may lack what edits added."""
        replaced, gone = {*replaced_paths(command)}, {*removed_paths(command)}
        for path in written_paths(command):
            if path in gone or is_temporary(path):
                continue
            if path in replaced and (known := self._changes.get(self._shown_name(path))):
                known.names.clear()
            self._add_uncommitted(path, FileChange(seq=seq, commands=1))

    def _remove(self, gone: str, seq: int) -> None:
        """Note that a file was deleted, if only one changed file has its path."""
        names = [name for name, paths in self._paths.items() if all(f"/{path}".endswith(f"/{gone}") for path in paths)]
        # Of the changes in earlier summaries only the names are known.
        earlier = [name for name in self._changes if name not in self._paths]
        names = names or [name for name in earlier if f"/{gone}".endswith(f"/{name}")]
        if len(names) == 1:
            paths = self._paths.pop(names[0], {gone})
            deletion = FileChange(seq=seq, is_gone=True)
            self._merge_change(names[0], deletion)
            self._uncommitted += [(path, deletion) for path in paths]

    def _revert(self, back: Undone) -> None:
        for _ in range(min(back.commits, len(self._committed))):
            self._uncommitted = [*self._committed.pop(), *self._uncommitted]
        gone = [
            (path, change)
            for path, change in self._uncommitted
            if not back.keeps_changes and (not back.paths or any(_means_file(path, one) for one in back.paths))
        ]
        for path, change in gone:
            self._uncommitted.remove((path, change))
            self._changes[self._shown_name(path)].take_back(change)
            if change.is_gone:
                self._paths.setdefault(self._shown_name(path), set()).add(path)

    def done(self) -> Sequence[SectionLine]:
        """Return lines on changed files, on files that commands changed, and on the tools called.

        Uncommitted files come first, then those with more changes.
        """
        counted = self._counts_all
        changes = {name: change for name, change in self._changes.items() if change.times > 0 or change.is_gone}
        uncommitted = {self._shown_name(path) for path, _ in self._uncommitted}
        ranked = sorted(
            changes.items(), key=lambda one: (one[0] in uncommitted, one[1].times, one[1].seq), reverse=True
        )
        changed = [change.line(name, counted=counted) for name, change in ranked]
        did, asked = (
            [calls.line(tool) for tool, calls in self._called.items() if bool(_ASKING.search(tool)) is asks]
            for asks in (False, True)
        )
        changed += by_commands(self._changes, counted=counted)
        called = (line for lines in (did, asked) for line in sorted(lines, key=lambda line: -line.seq))
        return [*changed, *called]

    def failing(self) -> Sequence[SectionLine]:
        """Return lines on commands, edits and tools that failed when last tried, without checks, the newest first.

        A command counts only if the last run of each of its programs failed, if it did not print its own status, and if
        the agent did not call the failure expected.
        """
        lines = [
            SectionLine(_failed(bare, self._errors[bare]), attempt.seq)
            for bare, (command, attempt) in self._commands.items()
            if attempt.state == ERROR
            and not (is_idle(command) or "$?" in command)
            and not _EXPECTED.search(next((text for seq, text in self._texts if seq > attempt.seq), ""))
            and all(self._programs[program] == ERROR for program in programs(command))
        ]
        for path, attempt in self._edits.items():
            if attempt.state == ERROR:
                lines.append(SectionLine(f"The last attempt to change {path} in this part failed.", attempt.seq))
        for tool, attempt in self._tools.items():
            if attempt.state == ERROR:
                lines.append(SectionLine(f"{tool} failed when it was last called in this part.", attempt.seq))
        return sorted(lines, key=lambda line: -line.seq)


def last_effect(events: Sequence[Event]) -> int:
    """Return the seq of the newest result of a call that may have changed something or shown success; 0 without any."""
    return max((call.result_seq for call in calls_in(events) if _may_settle(call)), default=0)


def _may_settle(call: CallWithResult) -> bool:
    if call.state in (ERROR, REJECTED) or call.result is None:
        return False
    if call.command is not None:
        return not is_idle(call.command)
    return bool(call.use.modified) or not (call.use.read or changes_nothing(call.tool))


def failed_checks(runs: Sequence[CheckRun]) -> Sequence[SectionLine]:
    """Return lines on the checks that failed when they were last run, the newest first."""
    failed = (run for run in reversed(runs) if run.state == ERROR)
    return [SectionLine(_failed(run.text, run.told, is_old=run.is_before_changes), run.seq) for run in failed]


def _failed(command: str, report: str, *, is_old: bool = False) -> str:
    when = f", {BEFORE_CHANGES}" if is_old else ""
    why = f": {report.rstrip('.')}" if report else ""
    return f"`{shorten(command, COMMAND_CHARS_SHOWN_MAX)}` failed when it was last run in this part{when}{why}."


def _means_file(path: str, named: str) -> bool:
    """Return whether a path in a command means a file, or a folder that contains it."""
    named = named.removeprefix("./").rstrip("/")
    return path == named or path.endswith(f"/{named}") or f"/{named}/" in f"/{path}"
