"""Tool calls with their results: the commands they ran, the files they used, and the plans they wrote.

An agent's plan is a list of steps, or tasks that single calls create and update, as in Claude Code.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from app.core.log.event import Event, lazy
from app.core.log.events import EventType, Json
from app.core.memory.digest.commands import programs
from app.core.memory.digest.files import (
    FileUse,
    command_of,
    diffed_paths,
    files_of,
    is_prose_file,
    is_temporary,
    named_paths,
    shows_own_change,
)
from app.core.memory.digest.outcomes import OK, state_of
from app.core.memory.digest.sentences import is_refused, is_rejected, shorten, words_of


@dataclass(frozen=True)
class CallWithResult:
    """A tool call with its result; `result` is None if the events hold none."""

    event: Event
    result: Event | None

    @property
    def seq(self) -> int:
        """The call's seq."""
        return self.event.seq

    @property
    def tool(self) -> str:
        """The tool's name; empty if it is unknown."""
        return self.event.tool or ""

    @property
    def result_seq(self) -> int:
        """The result's seq; 0 without one."""
        return 0 if self.result is None else self.result.seq

    @lazy
    def command(self) -> str | None:
        """The shell command that the call runs; None if it runs none."""
        return command_of(self.tool, self.event.arguments)

    @lazy
    def state(self) -> str:
        """The outcome, as in `state_of`."""
        return state_of(self.result, self.command)

    @property
    def is_rejected(self) -> bool:
        """Whether the user did not allow the call."""
        return is_rejected(self.result)

    @property
    def is_refused(self) -> bool:
        """Whether a harness refused the call."""
        return is_refused(self.result)

    @property
    def failed_without_effect(self) -> bool:
        """Whether the call failed and changed nothing: never true of a shell command, which may write files first."""
        return self.result is not None and (self.result.is_error or self.is_refused) and self.command is None

    @lazy
    def use(self) -> FileUse:
        """The files that the call used. A failed edit counts as reading, a rejected call uses none."""
        if self.is_rejected:
            return FileUse()
        use = files_of(self.tool, self.event.arguments)
        return FileUse(read=use.modified) if self.failed_without_effect else use

    @property
    def edits_work(self) -> bool:
        """Whether the call changed files of the work other than plain text, which checks seldom read."""
        return any(not (is_temporary(path) or is_prose_file(path)) for path in self.use.modified)

    @property
    def diffed(self) -> Sequence[str]:
        """The files that the result shows as modified."""
        if self.result is None or self.result.body is None or self.failed_without_effect:
            return ()
        diffs = tuple(diffed_paths(self.result.text))
        return diffs if diffs and shows_own_change(self.tool, self.event.arguments) else ()


def calls_in(events: Sequence[Event]) -> list[CallWithResult]:
    """Return the tool calls among the events in order, each with its last result."""
    results = {event.call_seq: event for event in events if event.type is EventType.TOOL_RESULT and event.call_seq}
    return [CallWithResult(event, results.get(event.seq)) for event in events if event.type is EventType.TOOL_CALL]


def done_later(events: Sequence[Event]) -> Collection[int]:
    """Return the seqs of the results of rejected calls whose work was done later.

    A call of the same tool, with at least the same programs or modified files, succeeded.
    """
    found: set[int] = set()
    done: list[tuple[str, frozenset[str]]] = []
    for call in reversed(calls_in(events)):
        subject = programs(call.command) if call.command else files_of(call.tool, call.event.arguments).modified
        tool, subjects = call.tool, frozenset(subject)
        if call.is_rejected:
            found.update([call.result_seq] if any(tool == name and subjects <= known for name, known in done) else ())
        elif call.state == OK:
            done.append((tool, subjects))
    return found


REJECTED_CHARS_MAX: Final = 80
REJECTED_CHARS_MAX_WITH_WORDS: Final = 40
RESULT_WORDS_CHARS_MAX: Final = 60
"""The maximum length of a rejected call in a line, of one in a line with words of its result, and of these words."""
_REJECTED: Final = "Rejected: "
_FOLDER: Final = re.compile(r"^cd \S{1,200} && ")
_RESULT_SAYS: Final = " (its result says: "
"""The mark of words in the result of a rejected call that need not be the user's."""
_GIT_CHANGED_BY: Final = "add checkout cherry-pick commit fetch merge pull push rebase reset restore switch"
_GIT_CHANGES: Final = frozenset(f"git {name}" for name in _GIT_CHANGED_BY.split())
"""Commands of git whose output does not begin with text from the repository."""


def rejection(result: Event, call: Event | None) -> str:
    """Return a rejected call, with the user's words about it.

    Words are trusted in an error and in the result of a tool that changes files, since only the agent's harness writes
    those, and in that of a command of git that reads nothing. Other output may merely look like a rejection, so its
    words are quoted as a result's.
    """
    tool, arguments = result.tool or "a tool", {} if call is None else call.arguments
    command = command_of(tool, arguments)
    words = _FOLDER.sub("", " ".join((command or "").split()))
    detail = shorten(words, REJECTED_CHARS_MAX) if command else next(iter(named_paths(arguments)), "")
    tried = " ".join(filter(None, (tool, detail)))
    trusted = result.is_error or (_only_changes_git(command) if command else files_of(tool, arguments).modified)
    words = words_of(result.text)
    if not words:
        return f"{_REJECTED}{tried}"
    if trusted:
        return f"{words} (rejecting: {tried})"
    tried, words = shorten(tried, REJECTED_CHARS_MAX_WITH_WORDS), shorten(words, RESULT_WORDS_CHARS_MAX)
    return f'{_REJECTED}{tried}{_RESULT_SAYS}"{words}")'


def is_bare_rejection(line: str) -> bool:
    """Return whether a line of `user_lines` is on a rejected call without any words about it."""
    return line.startswith(_REJECTED) and _RESULT_SAYS not in line


def _only_changes_git(command: str) -> bool:
    """Return whether a command runs git alone, and nothing that prints the repository's contents."""
    ran = set(programs(command))
    return bool(ran) and ran <= _GIT_CHANGES


def modifications(events: Sequence[Event]) -> Iterator[tuple[int, str]]:
    """Yield the paths of modified files as the events name them, the newest first, each with the seq of its event.

    `events` are in order; their arguments and texts are parsed only as far as the iterator is consumed.
    """
    calls = {seq: call for call in calls_in(events) for seq in (call.seq, call.result_seq)}
    for event in reversed(events):
        if call := calls.get(event.seq):
            yield from ((event.seq, path) for path in (call.use.modified if call.event is event else call.diffed))


STEPS_MAX: Final = 50
STEP_CHARS_MAX: Final = 200
PENDING, RUNNING, DONE = "pending", "in_progress", "completed"

_LISTS: Final = ("todos", "plan", "tasks")
"""Arguments that hold a list of steps."""
_TEXTS: Final = ("content", "step", "title", "text", "description")
_STATES: Final = {
    **dict.fromkeys(("pending", "not_started", "todo", "open"), PENDING),
    **dict.fromkeys(("in_progress", "running", "active"), RUNNING),
    **dict.fromkeys(("completed", "done", "finished"), DONE),
}


class PlanStep(NamedTuple):
    """A step of an agent's plan, its text on one line; `state` is `pending`, `in_progress` or `completed`."""

    text: str
    state: str


def plan_of(arguments: Mapping[str, Json]) -> tuple[PlanStep, ...]:
    """Return the list of steps that a call writes, at most STEPS_MAX of them; empty if it writes none.

    A list counts only if each of its items has a text and a known state.
    """
    for name in _LISTS:
        items = arguments.get(name)
        if isinstance(items, list) and items:
            steps = tuple(_steps(items))
            if len(steps) == len(items):
                return steps[:STEPS_MAX]
    return ()


def _steps(items: list[Json]) -> Iterator[PlanStep]:
    for item in items:
        if not isinstance(item, Mapping):
            return
        state = _STATES.get(str(item.get("status")))
        text = next((item[name] for name in _TEXTS if isinstance(item.get(name), str) and item[name].strip()), None)
        if state is None or text is None:
            return
        yield PlanStep(shorten(" ".join(text.split()), STEP_CHARS_MAX), state)


TASKS_MAX: Final = 50
TASK_CHARS_MAX: Final = 120
DELETED: Final = "deleted"
OPEN: Final = frozenset({PENDING, RUNNING})

_CALL: Final = re.compile(r"task_?(create|update|list|get)", re.I)
_LINE: Final = re.compile(r"^#(\w{1,12}) \[(\w{1,20})\] ?([^\n]{0,400})$", re.M)
_CREATED: Final = re.compile(r"#(\w{1,12})\b")


class Task(NamedTuple):
    """A task's id, its state (`pending`, `in_progress`, `completed` or `deleted`) and its text.

    State and text are empty where the calls of a span do not tell them.
    """

    id: str
    state: str
    text: str

    @property
    def line(self) -> str:
        """The task in the form of Claude Code's own list: `#3 [pending] Port the gauge`."""
        return f"#{self.id} [{self.state or PENDING}] {self.text}".rstrip()


def tasks_in(tool: str, arguments: Mapping[str, Json], result: str) -> Iterator[Task]:
    """Yield the tasks that a successful call created, updated or listed."""
    found = _CALL.fullmatch(tool)
    if found is None:
        return
    text, state = _words(arguments, ("subject", "title")), str(arguments.get("status") or "")
    if found[1].lower() == "create":
        created = _CREATED.search(result)
        if created is not None and text:
            yield Task(created[1], PENDING, text)
    elif found[1].lower() == "update":
        number = _words(arguments, ("taskId", "task_id", "id"))
        if number:
            yield Task(number, _STATES.get(state, state if state == DELETED else ""), text)
    else:
        yield from parse_tasks(result)


def parse_tasks(text: str) -> Iterator[Task]:
    """Yield the tasks in lines of the form of `Task.line`; other lines are ignored."""
    for number, state, rest in _LINE.findall(text):
        known = _STATES.get(state, state if state == DELETED else "")
        if known:
            yield Task(number, known, shorten(" ".join(rest.split()), TASK_CHARS_MAX))


def unite_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Return each task once with its newest state and text, at most TASKS_MAX of them."""
    found: dict[str, Task] = {}
    for task in tasks:
        before = found.pop(task.id, Task(task.id, "", ""))
        found[task.id] = Task(task.id, task.state or before.state, task.text or before.text)
    return tuple(found.values())[-TASKS_MAX:]


def by_state(tasks: Sequence[Task]) -> Sequence[Task]:
    """Sort tasks by state, open ones last, then by id."""
    return sorted(tasks, key=lambda task: (task.state in OPEN, len(task.id), task.id))


def next_open_last(tasks: Sequence[Task]) -> Sequence[Task]:
    """Reverse the open ones among sorted tasks, so that the next one, which matters most, comes last."""
    first_open = next((at for at, task in enumerate(tasks) if task.state in OPEN), len(tasks))
    return [*tasks[:first_open], *reversed(tasks[first_open:])]


def _words(arguments: Mapping[str, Json], names: Iterable[str]) -> str:
    value = next((arguments[name] for name in names if isinstance(arguments.get(name), str | int)), "")
    return shorten(" ".join(str(value).split()).lstrip("#"), TASK_CHARS_MAX)
