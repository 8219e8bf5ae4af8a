"""Making and applying stubs; shared by the reducers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from app.core.lexicon.identifiers import choose, ranked
from app.core.log.event import Event, content_text
from app.core.log.events import Json
from app.core.plan.context import wording
from app.core.plan.context.candidates import Candidate
from app.core.plan.context.context import Context, Reduced
from app.core.plan.context.frontier import Frontier, Stub
from app.core.plan.context.limits import Limits
from app.core.tokens.counter import Counter

KEEPS_CHARS_MAX: Final = 3_000
VISIBILITY: Final = "visibility"
"""The reducer whose stubs no other reducer replaces: hidden events stay hidden until they are shown again."""


def stub_for(event: Event, counter: Counter, reducer: str, reason: str, keeps: Sequence[str] = ()) -> Stub | None:
    """Return the stub of a tool result; None if it would save nothing."""
    tokens = counter.result(wording.stub(event, keeps, event.tokens))
    if tokens >= event.tokens:
        return None
    return Stub(event.seq, 0, tokens, event.tokens - tokens, reducer, reason, keeps=tuple(keeps))


def shortened_for(event: Event, chars: int, counter: Counter, reducer: str, reason: str) -> Stub | None:
    """Return the stub of a result cut to its first and last `chars` characters; None if it would save nothing."""
    if event.body is None:
        return None
    text = content_text(event.body.get("content"))
    if len(text) <= 2 * chars:
        return None
    tokens = counter.result(wording.shortened(text, chars, event.seq)) + counter.native(event.body.get("native"))
    if tokens >= event.tokens:
        return None
    return Stub(event.seq, chars, tokens, event.tokens - tokens, reducer, reason)


def arguments_for(event: Event, counter: Counter, reducer: str, reason: str) -> Stub | None:
    """Return the stub of a call with its long arguments shortened; None if it would save nothing."""
    short = wording.shortened_arguments(event.arguments, event.seq)
    return _call(event, short, wording.ARGUMENT_CHARS_KEPT, counter, reducer, reason)


def _call(
    event: Event, short: Mapping[str, Json], kept: int, counter: Counter, reducer: str, reason: str
) -> Stub | None:
    body = event.body
    if body is None or short == body.get("arguments"):
        return None
    tokens = call_tokens(event, short, counter)
    if tokens >= event.tokens:
        return None
    return Stub(event.seq, kept, tokens, event.tokens - tokens, reducer, reason)


def call_tokens(event: Event, arguments: Mapping[str, Json], counter: Counter) -> int:
    """Return the tokens of a call that is shown with these arguments instead of its own."""
    body = event.body or {}
    return counter.call(event.tool, arguments, body.get("content"), body.get("native"))


def limited_for(event: Event, limits: Limits, counter: Counter, reducer: str, reason: str) -> Stub | None:
    """Return the stub of a call with its arguments cut to `limits`; None if it would save nothing."""
    short = wording.limited_arguments(event.arguments, limits, event.seq)
    stub = _call(event, short, limits.chars, counter, reducer, reason)
    return None if stub is None else replace(stub, limits=limits[1:])


def stubs_for(context: Context, going: Sequence[Candidate], identifiers: float, reducer: str) -> list[Stub]:
    """Return the stubs of all candidates that are evicted together.

    Each keeps the identifiers that would be visible nowhere else, in at most the share `identifiers` of its text. If
    two hold the same one, the newer keeps it.
    """
    gone = {candidate.item.event.seq for candidate in going}
    seen: set[str] = set()
    if identifiers and any(candidate.item.event.call_seq is not None for candidate in going):
        for event in context.prefix:
            seen.update(event.names)
        for item in context.items:
            if item.event.seq not in gone:
                seen.update(item.names())
    stubs = []
    for candidate in reversed(going):
        stub = _stub(candidate, context.counter, identifiers, seen, reducer)
        if stub is not None and stub.tokens < candidate.item.tokens:
            stubs.append(stub)
    return stubs


def _stub(candidate: Candidate, counter: Counter, identifiers: float, seen: set[str], reducer: str) -> Stub | None:
    event = candidate.item.event
    if event.call_seq is None:
        return arguments_for(event, counter, reducer, candidate.reason)
    text = event.text
    room = min(KEEPS_CHARS_MAX, int(identifiers * len(text)))
    keeps = choose(ranked(event.names, text), seen, room) if room else ()
    seen.update(keeps)
    return stub_for(event, counter, reducer, candidate.reason, keeps)


def apply_stubs(context: Context, state: Frontier, stubs: Iterable[Stub]) -> Reduced:
    """Apply stubs to the context and state. They replace earlier stubs of the same events, except hidden ones."""
    new: dict[int, Stub] = {stub.seq: stub for stub in stubs}
    for stub in state.stubs if new else ():
        if stub.reducer == VISIBILITY and stub.seq in new and new[stub.seq].reducer != VISIBILITY:
            del new[stub.seq]
    if not new:
        return Reduced(context, state)
    kept = {stub.seq: stub for stub in state.stubs} | new
    return Reduced(context.with_stubs(new), replace(state, stubs=tuple(kept[seq] for seq in sorted(kept))))
