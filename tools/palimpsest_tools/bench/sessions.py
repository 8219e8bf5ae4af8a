"""Sessions as logs with the calls on them, and the values that each call used."""

from dataclasses import dataclass

from app.core.log.event import Event


@dataclass(frozen=True, slots=True)
class Value:
    """A value that the model used at a call, and the seqs of the earlier events that hold it verbatim.

    `only_results` means that it was seen in tool results only, so that evicting them loses it.
    """

    text: str
    holders: tuple[int, ...]
    only_results: bool


@dataclass(frozen=True, slots=True)
class CallMade:
    """A model call on the first `events` events, at `at` seconds."""

    events: int
    at: float
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class LoggedSession:
    """One recording. `prefix_tokens` are those of the system prompt and tools that it lacks."""

    id: str
    events: tuple[Event, ...]
    calls: tuple[CallMade, ...]
    prefix_tokens: int
