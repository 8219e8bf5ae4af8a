"""A recorded session as a sequence of appends and model calls. Every input format is read into it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeAlias

from app.core.lexicon.times import from_seconds, time_text
from app.core.log.events import EVENTS_PER_BATCH_MAX, Json
from app.core.render.formats import FORMATS

Object: TypeAlias = Mapping[str, Json]
Times: TypeAlias = tuple[float | None, ...]
"""The times of the items of a batch in epoch seconds, None for an unknown time; () if all are unknown."""


class MalformedRecording(Exception):
    """The text is not a recording. `line` counts from 1 and is None if the fault is in no single line."""

    def __init__(self, detail: str, *, line: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.line = line


class NothingRecorded(MalformedRecording):
    """The text is a coding agent's log without a message."""


@dataclass(frozen=True, slots=True)
class AppendEvents:
    """Neutral events to append in one request."""

    events: tuple[Object, ...]
    times: Times = ()


@dataclass(frozen=True, slots=True)
class AppendMessages:
    """Provider-native messages to append in one request."""

    format: str
    messages: tuple[Object, ...]
    times: Times = ()


@dataclass(frozen=True, slots=True)
class RecordedUsage:
    """Tokens of a call as its provider counted them. `input` is all of the input, that of the cache included.

    None means not recorded. `output` includes the model's reasoning. `write_hour` is the part of `write` that the cache
    keeps for an hour, which costs more.
    """

    input: int
    read: int | None = None
    write: int | None = None
    output: int | None = None
    write_hour: int | None = None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of the agent's model at the time `at` in epoch seconds, None if the recording has no times.

    `model` and `usage` are as recorded. `whole` means that the agent sent all of the conversation up to here: it had
    not compacted it, nor cleared a part of it.
    """

    at: float | None
    model: str | None = None
    usage: RecordedUsage | None = None
    whole: bool = True


Step: TypeAlias = AppendEvents | AppendMessages | ModelCall


@dataclass(frozen=True, slots=True)
class Recording:
    """One session. `system` and `tools` are appended first, as neutral events.

    `format` is the provider format that its agent sent, None if it is unknown. `model` is the recorded model, if the
    file names one, and the last one if there are several. `notes` name repairs and omissions by the reader. `agent` is
    the agent whose log this is.
    """

    id: str
    format: str | None
    system: str | tuple[Object, ...] | None
    tools: tuple[Object, ...] | None
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    model: str | None = None
    metadata: Object = field(default_factory=dict)
    agent: str | None = None

    @property
    def calls(self) -> int:
        """The number of model calls."""
        return sum(isinstance(step, ModelCall) for step in self.steps)

    def head(self) -> tuple[Object, ...]:
        """Return the events of the system prompt and the tools, in log order."""
        events: list[Object] = []
        if self.system is not None:
            content = self.system if isinstance(self.system, str) else list(self.system)
            events.append({"type": "system.prompt", "id": "system", "content": content})
        if self.tools is not None:
            events.append({"type": "tools", "id": "tools", "content": list(self.tools)})
        return tuple(events)

    def batches(self) -> Iterator[Step]:
        """Yield all steps, the head first; appends are split so that a request can hold each."""
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
    """One recorded message: its additions to the log, whether the model wrote it, and its time in epoch seconds.

    One that `continues` belongs to the response of the message before it. `model`, `usage` and `whole` are of the
    call that a response answers.
    """

    adds: tuple[Object, ...]
    by_model: bool
    at: float | None = None
    continues: bool = False
    model: str | None = None
    usage: RecordedUsage | None = None
    whole: bool = True


def weave(entries: Iterable[RecordedMessage], append: Callable[[tuple[Object, ...], Times], Step]) -> tuple[Step, ...]:
    """Return the steps of a conversation, with a model call directly before each of the model's responses.

    A call has the time of the message before it and is never earlier than the previous call. A first message of the
    model has no call before it, because there would be nothing to send.
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
        if entry.by_model and not entry.continues and (steps or pending):
            settle()
            at = latest if latest is not None else entry.at
            steps.append(ModelCall(at, entry.model, entry.usage, entry.whole))
        pending.extend(entry.adds)
        times.extend([entry.at] * len(entry.adds))
        if entry.at is not None:
            latest = entry.at if latest is None else max(latest, entry.at)
    settle()
    return tuple(steps)


def events_of(recording: Recording) -> Iterator[Object]:
    """Yield a recording's events in log order, with ids and times.

    The ids depend only on the content before an event, so a repeated or continued recording gives the same ids again.
    """
    yield from recording.head()
    number = 0
    in_conversation = False
    for step in recording.steps:
        match step:
            case AppendEvents(events, times):
                for event, at in zip_longest(events, times):
                    yield _timed(event, at)
            case AppendMessages(format, messages, times):
                for message, at in zip_longest(messages, times):
                    for part, event in enumerate(FORMATS[format].read([message])):
                        # Read alone, every system message looks like one that leads the conversation.
                        prompt = event["type"] == "system.prompt"
                        kind = "system.message" if prompt and in_conversation else event["type"]
                        in_conversation = in_conversation or not prompt
                        yield _timed(event | {"type": kind, "id": f"m{number}.{part}"}, at)
                    number += 1


def _timed(event: Object, at: float | None) -> Object:
    """Return the event with its time, unless that is unknown or the event has one."""
    if at is None or event.get("occurred_at") is not None:
        return event
    return {**event, "occurred_at": time_text(from_seconds(at))}
