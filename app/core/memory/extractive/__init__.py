"""A whole summary without a model: the body, then the digest as its appendix."""

from collections.abc import Sequence
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.digest.appendix import Appendix, Measure, prose_measure
from app.core.memory.digest.record import Digest
from app.core.memory.extractive.body import SpanBody, extract_turn_start
from app.core.tokens.counter import MESSAGE_TOKENS, Counter

BODY_TOKENS: Final = 680
BODY_SHARE: Final = 0.4
"""The size of the body in a summary of work on files, and its maximum share. A context that shows several
summaries joins their appendixes; a body loses only lines that later work settled, unless the whole summary is cut."""
NAMES_ENOUGH: Final = 2_800
"""The size from which more names bring little, so that the rest of a larger summary goes to its body. Measured on
recorded coding sessions: above it, contexts show no more of the values that later calls need."""
CASES_SHARE: Final = 0.5
"""The body's share in a summary of tool calls that used neither files nor a shell, where the words and the calls matter
more than the names in results."""
ROUNDS: Final = 2
SPARE_SHARE: Final = 0.1
"""The share of a summary's tokens above which unused ones go to its body, in a second round (ROUNDS)."""
TALK_SHARE: Final = 0.9
"""The body's share in a summary of talk, where whole quoted messages are used later."""
TURN_START_SHARE: Final = 0.25
"""The share of the body for the first part of a split turn."""
APPENDIX_FOR_REQUESTS_SHARE: Final = 1 / 3
"""The maximum share of a summary that is reserved for an appendix large enough for the user's requests."""
TURN_START_SEPARATOR: Final = "\n\n---\n\n**Turn Context (split turn):**\n\n"


def write_summary(
    events: Sequence[Event],
    turn_start_events: Sequence[Event],
    previous: str,
    digest: Digest,
    tokens: int,
    counter: Counter,
    focus: str = "",
) -> str:
    """Write a summary in at most `tokens` tokens of prose.

    `turn_start_events` are the events of a turn whose rest stays verbatim; they get a heading of their own. `previous`
    is the text of the summaries that this one replaces. `digest` covers the events and these summaries.
    """
    measure = prose_measure(counter)
    appendix = Appendix(digest, measure)
    tools = any(event.type is EventType.TOOL_CALL for event in (*events, *turn_start_events)) or bool(digest.outputs)
    room = int(tokens * (CASES_SHARE if tools else TALK_SHARE))
    if tools and digest.uses_files:
        room = min(BODY_TOKENS + max(0, tokens - NAMES_ENOUGH), int(tokens * BODY_SHARE))
    room = min(room, tokens - _least_appendix(appendix, tokens))
    turn_start = ""
    if turn_start_events:
        part_tokens = int(room * TURN_START_SHARE) if events or previous else room
        turn_start = TURN_START_SEPARATOR + extract_turn_start(turn_start_events, part_tokens, measure, focus)
        room -= part_tokens
    body = SpanBody(events, previous, digest, measure, focus)
    text = ""
    for _ in range(ROUNDS):
        text = with_appendix(body.write(room) + turn_start, appendix, tokens, measure)
        left = tokens + MESSAGE_TOKENS - counter.message(text)  # a cached count, which the stored summary uses too
        if left <= tokens * SPARE_SHARE:
            break
        room += left
    return text


def with_appendix(body: str, appendix: Appendix, tokens: int, measure: Measure, at_least: int = 0) -> str:
    """Return the body with the appendix, which gets the tokens that the body leaves, at least `at_least`.

    It gets more if the user's requests need more, up to their share of the summary.
    """
    room = max(tokens - measure(body) - 1, at_least, _least_appendix(appendix, tokens, body))
    appended = appendix.write(room, body) if room > 0 else ""
    return f"{body.rstrip()}\n\n{appended}" if appended else body.rstrip()


def _least_appendix(appendix: Appendix, tokens: int, body: str = "") -> int:
    return min(appendix.requests_tokens(body), int(tokens * APPENDIX_FOR_REQUESTS_SHARE))
