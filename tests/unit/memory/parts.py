"""Each part of a summary, written by a new object."""

from collections.abc import Sequence

from app.core.log.event import Event
from app.core.memory.digest.appendix import Appendix, prose_measure
from app.core.memory.digest.record import Digest
from app.core.memory.extractive.body import SpanBody, extract_turn_start
from app.core.tokens.counter import Counter


def appendix(digest: Digest, counter: Counter, tokens: int, body: str = "") -> str:
    """Return the appendix of a digest."""
    return Appendix(digest, prose_measure(counter)).write(tokens, body)


def extract(
    events: Sequence[Event], previous_text: str, digest: Digest, tokens: int, counter: Counter, focus: str = ""
) -> str:
    """Return the body of a span's summary."""
    return SpanBody(events, previous_text, digest, prose_measure(counter), focus).write(tokens)


def extract_start(
    events: Sequence[Event], previous_text: str, digest: Digest, tokens: int, counter: Counter, focus: str = ""
) -> str:
    """Return the body of the summary of a turn's first part."""
    return extract_turn_start(events, tokens, prose_measure(counter), focus)
