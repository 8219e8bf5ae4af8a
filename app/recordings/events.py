"""A recording as the events of a log, each with an id and its time, so that it can be sent again without doubling."""

from collections.abc import Iterator
from itertools import chain, zip_longest

from app.core.lexicon.times import from_seconds, time_text
from app.core.render.formats import FORMATS
from app.recordings.recording import AppendEvents, AppendMessages, Object, Recording


def events_of(recording: Recording) -> Iterator[Object]:
    """The events of a recording in log order; the same recording, or one that goes on, gives the same ids again."""
    return chain(recording.head(), _said(recording))


def _said(recording: Recording) -> Iterator[Object]:
    number = 0
    spoken = False
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
                        kind = "system.message" if prompt and spoken else event["type"]
                        spoken = spoken or not prompt
                        yield _timed(event | {"type": kind, "id": f"m{number}.{part}"}, at)
                    number += 1


def _timed(event: Object, at: float | None) -> Object:
    """The event with the time at which it happened, if that is known and it does not say so itself."""
    if at is None or event.get("occurred_at") is not None:
        return event
    return {**event, "occurred_at": time_text(from_seconds(at))}
