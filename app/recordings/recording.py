"""A recorded session as a sequence of appends and model calls, into which every input format is read."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from app.core.log.events import EVENTS_PER_BATCH_MAX, Json

Object: TypeAlias = Mapping[str, Json]
Times: TypeAlias = tuple[float | None, ...]
"""The time of each of several things in epoch seconds, None where none was recorded; () if that is so of all."""


class MalformedRecording(Exception):
    """The text is not a recording; `line` counts from 1, and is None if no line can be named."""

    def __init__(self, detail: str, *, line: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.line = line


class NothingRecorded(MalformedRecording):
    """The text is a coding agent's log in which nobody has said anything yet."""


@dataclass(frozen=True, slots=True)
class AppendEvents:
    """Neutral events that enter the log together."""

    events: tuple[Object, ...]
    times: Times = ()


@dataclass(frozen=True, slots=True)
class AppendMessages:
    """Provider-native messages that enter the log together."""

    format: str
    messages: tuple[Object, ...]
    times: Times = ()


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of the agent's model; `at` is its time in epoch seconds, None if the recording has no times."""

    at: float | None


Step: TypeAlias = AppendEvents | AppendMessages | ModelCall


@dataclass(frozen=True, slots=True)
class Recording:
    """One session. `system` and `tools` are appended first, as neutral events.

    `format` is the provider format of its messages, None for neutral events. `model` is the one that it was recorded
    with, if it says so, and `metadata` the session's own. `notes` tell a person what was repaired or left out while
    reading.
    """

    id: str
    format: str | None
    system: str | tuple[Object, ...] | None
    tools: tuple[Object, ...] | None
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    model: str | None = None
    metadata: Object = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """How many model calls there are."""
        return sum(isinstance(step, ModelCall) for step in self.steps)

    def head(self) -> tuple[Object, ...]:
        """The events of the system prompt and the tools, in log order."""
        events: list[Object] = []
        if self.system is not None:
            content = self.system if isinstance(self.system, str) else list(self.system)
            events.append({"type": "system.prompt", "id": "system", "content": content})
        if self.tools is not None:
            events.append({"type": "tools", "id": "tools", "content": list(self.tools)})
        return tuple(events)

    def batches(self) -> Iterator[Step]:
        """All steps, the head first, with appends split to what one request may hold."""
        if self.head():
            yield AppendEvents(self.head())
        for step in self.steps:
            match step:
                case ModelCall():
                    yield step
                case AppendEvents(events, times):
                    yield from (AppendEvents(*batch) for batch in _cut(events, times))
                case AppendMessages(format, messages, times):
                    yield from (AppendMessages(format, *batch) for batch in _cut(messages, times))


def _cut(items: tuple[Object, ...], times: Times) -> Iterator[tuple[tuple[Object, ...], Times]]:
    for start in range(0, len(items), EVENTS_PER_BATCH_MAX):
        end = start + EVENTS_PER_BATCH_MAX
        yield items[start:end], times[start:end]


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """One recorded message: what it adds to the log, whether it is the model's, and its time (epoch seconds)."""

    adds: tuple[Object, ...]
    by_model: bool
    at: float | None = None


def weave(entries: Iterable[RecordedMessage], append: Callable[[tuple[Object, ...], Times], Step]) -> tuple[Step, ...]:
    """The steps of a conversation: a model call directly before each of the model's messages.

    A call has the time at which the message before it arrived, and is never earlier than the call before it. There is
    no call before a message that nothing precedes, because there would be nothing to send.
    """
    steps: list[Step] = []
    pending: list[Object] = []
    times: list[float | None] = []
    latest: float | None = None

    def settle() -> None:
        if pending:
            known = any(at is not None for at in times)
            steps.append(append(tuple(pending), tuple(times) if known else ()))
            pending.clear()
            times.clear()

    for entry in entries:
        if entry.by_model and (steps or pending):
            settle()
            steps.append(ModelCall(latest if latest is not None else entry.at))
        pending.extend(entry.adds)
        times.extend([entry.at] * len(entry.adds))
        if entry.at is not None:
            latest = entry.at if latest is None else max(latest, entry.at)
    settle()
    return tuple(steps)
