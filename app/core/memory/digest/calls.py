"""Tool calls with their results: the commands they ran, and the files they used."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.core.log.event import Event, lazy
from app.core.log.events import EventType
from app.core.memory.digest.files import (
    FileUse,
    command_of,
    diffed_paths,
    files_of,
    is_temporary,
    shows_own_change,
)
from app.core.memory.digest.outcomes import state_of
from app.core.memory.digest.sentences import is_refused, is_rejected


@dataclass(frozen=True)
class AnsweredCall:
    """A tool call and its result; None if there is none among the events."""

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
    def has_failed(self) -> bool:
        """Whether the call failed without effect: a shell command may have written files before it failed."""
        return self.result is not None and (self.result.is_error or self.is_refused) and self.command is None

    @lazy
    def use(self) -> FileUse:
        """The files that the call used. A failed edit counts as reading, a rejected call uses none."""
        if self.is_rejected:
            return FileUse()
        use = files_of(self.tool, self.event.arguments)
        return FileUse(read=use.modified) if self.has_failed else use

    @property
    def edits(self) -> bool:
        """Whether the call changed files of the work."""
        return any(not is_temporary(path) for path in self.use.modified)

    @property
    def diffed(self) -> Sequence[str]:
        """The files that the result shows as modified."""
        if self.result is None or self.result.body is None or self.has_failed:
            return ()
        diffs = tuple(diffed_paths(self.result.text))
        return diffs if diffs and shows_own_change(self.tool, self.event.arguments) else ()


def answered_calls(events: Sequence[Event]) -> list[AnsweredCall]:
    """Return the tool calls among the events in order, each with its last result."""
    results = {event.call_seq: event for event in events if event.type is EventType.TOOL_RESULT and event.call_seq}
    return [AnsweredCall(event, results.get(event.seq)) for event in events if event.type is EventType.TOOL_CALL]


def modifications(events: Sequence[Event]) -> Iterator[tuple[int, str]]:
    """Yield the paths of modified files as the events name them, the newest first, each with the seq of its event.

    `events` are in order, and read only as far as the iterator is.
    """
    calls = {seq: call for call in answered_calls(events) for seq in (call.seq, call.result_seq)}
    for event in reversed(events):
        if call := calls.get(event.seq):
            yield from ((event.seq, path) for path in (call.use.modified if call.event is event else call.diffed))
