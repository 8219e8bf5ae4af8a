"""The content of a window of the same size without a server: the newest messages, with or without a summary."""

from collections.abc import Sequence
from dataclasses import replace

from app.core.log.event import Event
from app.core.policy.policy import Policy
from app.core.tokens.budget import budget_for
from app.core.tokens.counter import REQUEST_TOKENS
from bench.cost.sessions import COUNTER
from bench.quality.answers import with_questions
from bench.quality.kept import Kept, kept_needs, text_of
from bench.quality.recorded import Moment, Recorded
from bench.retention.points import message_of
from palimpsest_tools.recordings.recording import Object


def newest(recording: Recorded, moment: Moment, window: int) -> Kept:
    """Measure the prefix and the newest rounds that fit the target of the `default` policy."""
    return _measured(recording, moment, window, "")


def own_summary(recording: Recorded, moment: Moment, window: int) -> Kept | None:
    """Measure the same after the recorded agent's own summary; None without one, or if it does not fit."""
    summary = moment.point.summary
    return _measured(recording, moment, window, summary) if summary and _room(moment, window, summary) > 0 else None


def _measured(recording: Recorded, moment: Moment, window: int, summary: str) -> Kept:
    at = moment.point.at
    room = _room(moment, window, summary)
    first, taken = fitting(recording.messages[:at], tokens_by_message(moment.point.events, at), room)
    shown = [recording.system, summary, *recording.messages[first:at]]
    target = _target(window)
    text = text_of(shown)
    kept = kept_needs(moment, recording.system, text)
    answers = with_questions(moment.answers, shown, text)
    return replace(kept, answers=answers, used=(target - room + taken) / target)


def fitting(messages: Sequence[Object], tokens: Sequence[int], room: int) -> tuple[int, int]:
    """Return the index of the first message of the newest whole rounds that fit, and their tokens.

    A round is a message of the model with the results of its calls; any other message is a round of its own.
    """
    first, taken, pending = len(messages), 0, 0
    for index in reversed(range(len(messages))):
        pending += tokens[index]
        if messages[index]["role"] == "tool":
            continue
        if taken + pending > room:
            break
        first, taken, pending = index, taken + pending, 0
    return first, taken


def tokens_by_message(events: Sequence[Event], messages: int) -> list[int]:
    """Return the tokens of each of the first messages, as the server counts their events."""
    tokens = [0] * messages
    for event in events:
        if message_of(event) >= 0:
            tokens[message_of(event)] += event.tokens
    return tokens


def _room(moment: Moment, window: int, summary: str) -> int:
    """Return the part of the target that is left for messages."""
    prefix = sum(event.tokens for event in moment.point.events if message_of(event) < 0)
    return _target(window) - REQUEST_TOKENS - prefix - (COUNTER.message(summary) if summary else 0)


def _target(window: int) -> int:
    return budget_for(Policy(), window, COUNTER.estimator.margin).target
