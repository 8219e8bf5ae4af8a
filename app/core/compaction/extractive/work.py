"""The work of a span in plain sentences: files changed, commands run, tools called, and what still fails.

The sentences are built from the agent's own calls and how each ended. Of tool output only counts are repeated.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.core.compaction.extractive.sections import SectionLine
from app.core.digest.files import command_of, files_of
from app.core.digest.outcomes import CHECKS, ERROR, OK, READERS, REJECTED, UNKNOWN, bare_command, reads_only, state_of
from app.core.digest.sentences import shortened
from app.core.digest.shell import programs
from app.core.log.event import Event
from app.core.log.events import EventType, Json

FILES_MAX: Final = 6
KINDS_MAX: Final = 12
"""How many kinds of commands, and how many tools, are named."""
CALLS_MAX: Final = 3
"""How many calls, of tools for neither files nor a shell, are listed with their arguments."""
ARGUMENTS_CHARS_MAX: Final = 120
COMMAND_CHARS_MAX: Final = 100

_END: Final = {OK: "its last run passed", UNKNOWN: "how its last run ended is not known"}
_COUNT: Final = re.compile(r"\b(\d{1,6}) (passed|failed|errors?|skipped|passing|failing)\b")
_COUNT_CHARS: Final = 2_000
_HELPERS: Final = READERS | {"chmod", "cp", "mkdir", "mv", "rm", "tee", "touch", "xargs"}
"""Programs that prepare the work of another, or cut its output."""
_LOOKING: Final = re.compile(
    r"read|view|cat\b|grep|search|glob|find|list|(?:^|_)ls(?:$|_)|tree|stat|todo|task_?(?:create|update|get)|^plan",
    re.I,
)


@dataclass(slots=True)
class _Runs:
    """The runs of one kind of call: how each ended, the seq of the newest, and the counts in its output."""

    states: list[str] = field(default_factory=list)
    seq: int = 0
    counts: str = ""

    def add(self, state: str, seq: int) -> None:
        self.states.append(state)
        self.seq = seq

    @property
    def failed(self) -> int:
        return self.states.count(ERROR)


class SpanWork:
    """The calls of a span that did more than look, with their outcomes: file changes, commands and other calls."""

    def __init__(self, events: Sequence[Event]) -> None:
        answers = {e.call_seq: e for e in events if e.type is EventType.TOOL_RESULT and e.call_seq}
        self._files: dict[str, _Runs] = {}
        self._programs: dict[str, _Runs] = {}
        self._commands: dict[str, tuple[str, _Runs]] = {}
        self._tools: dict[str, _Runs] = {}
        self._other_calls: list[tuple[Event, str]] = []
        for call in events:
            if call.type is EventType.TOOL_CALL:
                self._add(call, answers.get(call.seq))

    def _add(self, call: Event, result: Event | None) -> None:
        tool = call.tool or "a tool"
        command = command_of(tool, call.arguments)
        state = state_of(result, command)
        if state == REJECTED:
            return  # it did nothing, and is told with the user's words
        if command is not None:
            self._ran(_program(command) or "", command, state, call, result)
            return
        use = files_of(tool, call.arguments)
        for path in use.modified:
            self._files.setdefault(path, _Runs()).add(state, call.seq)
        if not use.modified:
            looks = bool(use.read or _LOOKING.search(tool))
            if not looks:
                self._tools.setdefault(tool, _Runs()).add(state, call.seq)
                self._other_calls.append((call, state))

    def _ran(self, program: str, command: str, state: str, call: Event, result: Event | None) -> None:
        runs = self._programs.setdefault(program, _Runs())
        _, same = self._commands.setdefault(bare_command(command), (program, _Runs()))
        for one in (runs, same):
            one.add(state, call.seq)
            one.counts = _counts(result)
        for other in {*programs(command)} & self._programs.keys() - {program}:
            # Of a command that failed it is not known which of its programs did.
            self._programs[other].add(OK if state == OK else UNKNOWN, call.seq)

    def done(self) -> Sequence[SectionLine]:
        """Lines on files changed, commands run and tools called, in this order."""
        return [*self._changed(), *self._programs_run(), *self._calls()]

    def failing(self) -> Sequence[SectionLine]:
        """Lines on what failed when it was last tried, the newest first.

        A command counts only if no later run of its program did better, whatever its arguments.
        """
        commands = {
            command: runs
            for command, (program, runs) in self._commands.items()
            if self._programs[program].states[-1] == ERROR and not reads_only(command)
        }
        lines = [
            *(self._failure(f"`{shortened(c, COMMAND_CHARS_MAX)}`", "run", runs) for c, runs in commands.items()),
            *(self._failure(f"The change of {path}", "tried", runs) for path, runs in self._files.items()),
            *(self._failure(tool, "called", runs) for tool, runs in self._tools.items()),
        ]
        return sorted((line for line in lines if line), key=lambda line: -line.seq)

    @staticmethod
    def _failure(what: str, tried: str, runs: _Runs) -> SectionLine | None:
        if runs.states[-1] != ERROR:
            return None
        earlier = f", and {runs.failed - 1} of {len(runs.states) - 1} times before" if runs.failed > 1 else ""
        counts = f" ({runs.counts})" if runs.counts else ""
        return SectionLine(f"{what} failed when it was last {tried}{counts}{earlier}.", runs.seq)

    def _changed(self) -> Sequence[SectionLine]:
        changed = {path: runs for path, runs in self._files.items() if runs.failed < len(runs.states)}
        if not changed:
            return ()
        newest = sorted(changed, key=lambda path: -changed[path].seq)
        named = [
            _times(_file_name(path), len(changed[path].states) - changed[path].failed) for path in newest[:FILES_MAX]
        ]
        return [SectionLine(f"Changed {_listed(named, len(newest))}.", changed[newest[0]].seq)]

    def _programs_run(self) -> Sequence[SectionLine]:
        newest = sorted(self._programs.items(), key=lambda item: -item[1].seq)
        recovered = [
            SectionLine(
                f"`{name}` failed {_frequency(runs.failed)}; {_END[runs.states[-1]]}{_suffix(runs.counts)}.", runs.seq
            )
            for name, runs in newest
            if runs.failed and runs.states[-1] != ERROR
        ]
        plain = [(name, runs) for name, runs in newest if name and not (runs.failed or reads_only(name))]
        if not plain:
            return recovered
        named = [_times(f"`{name}`{_suffix(runs.counts)}", len(runs.states)) for name, runs in plain[:KINDS_MAX]]
        return [*recovered, SectionLine(f"Ran {_listed(named, len(plain))}.", plain[0][1].seq)]

    def _calls(self) -> Sequence[SectionLine]:
        lines = [
            SectionLine(
                f"Called {call.tool}{with_arguments(call.arguments)}{': an error' if state == ERROR else ''}.",
                call.seq,
            )
            for call, state in reversed(self._other_calls[-CALLS_MAX:])
        ]
        return [*lines, *_tally(self._tools)] if len(self._other_calls) > CALLS_MAX else lines


def _tally(tools: Mapping[str, _Runs]) -> Sequence[SectionLine]:
    named = [_times(name, len(runs.states)) for name, runs in list(tools.items())[:KINDS_MAX]]
    return [SectionLine(f"Called {_listed(named, len(tools))}.", max(runs.seq for runs in tools.values()))]


def _program(command: str) -> str | None:
    """The main program of a command: a test or build if there is one, else the first that is not in `_HELPERS`."""
    ran = list(programs(command))
    main = [name for name in ran if name.split(" ", 1)[0] not in _HELPERS]
    return next((name for name in main if CHECKS.search(name)), next(iter(main or ran), None))


def _counts(result: Event | None) -> str:
    """The last test counts in a program's output, such as `3 failed, 39 passed`."""
    found = {word: number for number, word in _COUNT.findall("" if result is None else result.text[-_COUNT_CHARS:])}
    return ", ".join(f"{number} {word}" for word, number in found.items())


def _suffix(counts: str) -> str:
    return f" ({counts})" if counts else ""


def _times(name: str, times: int) -> str:
    return f"{name} x{times}" if times > 1 else name


def _frequency(times: int) -> str:
    return "once" if times == 1 else f"{times} times"


def _listed(named: Sequence[str], total: int) -> str:
    return ", ".join(named) + (f" and {total - len(named)} more" if total > len(named) else "")


def _file_name(path: str) -> str:
    """A file's own name; the appendix lists its full path."""
    return path.rstrip("/").rsplit("/", 1)[-1] or path


def with_arguments(arguments: Mapping[str, Json]) -> str:
    """The plain arguments of a call, as the agent wrote them."""
    plain = [f"{k} {' '.join(str(v).split())}" for k, v in arguments.items() if isinstance(v, str | int | float) and v]
    return f" with {shortened(', '.join(plain), ARGUMENTS_CHARS_MAX)}" if plain else ""
