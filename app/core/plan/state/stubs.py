"""Stubs: how they are made, applied, reworded and erased."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from app.core import dataclass, replace
from app.core.lexicon.identifiers import choose, ranked
from app.core.log.event import ERASED, Event, content_text
from app.core.log.events import EventType, Json
from app.core.memory.cover import Summary
from app.core.memory.digest.files import command_of
from app.core.memory.digest.outcomes import ERROR, OK, outcomes_of
from app.core.plan.state import wording
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import Frontier, Stub
from app.core.plan.state.items import Item
from app.core.plan.state.projection import count_summaries, summary_blocks
from app.core.plan.state.wording import Limits, noted_files
from app.core.policy.groups import Summarize
from app.core.tokens.counter import SYSTEM_TOKENS, Counter

STUB_TOKENS: Final = 50
"""Approximate tokens of a stub without identifiers."""
LISTING_TOKENS_MAX: Final = 3_000
"""The size from which listings are evicted whatever their density; their stubs keep as many identifiers as fit."""
KEEPS_CHARS_MAX: Final = 3_000
VISIBILITY: Final = "visibility"
"""The reducer whose stubs no other reducer replaces: hidden events stay hidden until they are shown again."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An item that may be evicted, the reason, the seq from which it holds, and the approximate tokens saved."""

    item: Item
    reason: str
    since: int
    saves: int


def stub_for(event: Event, context: Context, reducer: str, reason: str, keeps: Sequence[str] = ()) -> Stub | None:
    """Return the stub of a tool result in the context; None if it would save nothing."""
    outcome = _outcome(event, context)
    tokens = context.counter.result(wording.stub(event, keeps, event.tokens, outcome=outcome))
    if tokens >= event.tokens:
        return None
    saved = event.tokens - tokens
    return Stub(event.seq, 0, tokens, saved, reducer, reason, keeps=tuple(keeps), outcome=outcome)


def replaced_by(event: Event, text: str, counter: Counter, reducer: str, reason: str) -> Stub:
    """Return the stub that shows `text` in place of an event."""
    tokens = counter.result(text) if event.type is EventType.TOOL_RESULT else counter.message(text)
    tokens += SYSTEM_TOKENS if event.type is EventType.SYSTEM_MESSAGE else 0
    return Stub(event.seq, 0, tokens, max(0, event.tokens - tokens), reducer, reason, text)


def _outcome(result: Event, context: Context) -> str:
    """Return a sentence on the checks whose result it is; empty if it is of none, or their outcome is not known."""
    call = None if result.call_seq is None or result.body is None else context.item(result.call_seq)
    command = None if call is None else command_of(result.tool or "", call.event.arguments)
    outcomes = outcomes_of(command, result) if command else ()
    failed = next((one for one in outcomes if one.state == ERROR), None)
    if failed is not None:
        return wording.outcome(failed.report, passed=False)
    passed = bool(outcomes) and all(one.state == OK for one in outcomes)
    return wording.outcome(outcomes[0].report, passed=True) if passed else ""


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
        seen.update(*[event.names for event in context.prefix])
        seen.update(*[item.names() for item in context.items if item.event.seq not in gone])
    stubs = []
    for candidate in reversed(going):
        stub = _stub(candidate, context, identifiers, seen, reducer)
        if stub is not None and stub.tokens < candidate.item.tokens:
            stubs.append(stub)
    return stubs


def _stub(candidate: Candidate, context: Context, identifiers: float, seen: set[str], reducer: str) -> Stub | None:
    event = candidate.item.event
    if event.call_seq is None:
        return arguments_for(event, context.counter, reducer, candidate.reason)
    text = event.text
    room = min(KEEPS_CHARS_MAX, int(identifiers * len(text)))
    keeps = choose(ranked(event.names, text), seen, room) if room else ()
    seen.update(keeps)
    return stub_for(event, context, reducer, candidate.reason, keeps)


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


def omit_recall_hints(before: Frontier, after: Reduced, summaries: Sequence[Summary], rules: Summarize) -> Reduced:
    """Remove recall hints from the texts that the plan `after` adds to `before`, the frontier that it began with."""
    context, state = after.context, after.state
    earlier = {stub.seq: stub for stub in before.stubs}
    new = {
        stub.seq: _without_hint(stub, item.event, context.counter)
        for stub in state.stubs
        if stub.recall and stub.tokens and stub != earlier.get(stub.seq)
        if (item := context.item(stub.seq)) is not None
    }
    if new:
        stubs = tuple(new.get(stub.seq, stub) for stub in state.stubs)
        context, state = context.with_stubs(new), replace(state, stubs=stubs)
    if state.note and state.note != before.note:
        text = wording.note(state.left_out, recall=False)
        state = replace(state, note=text, note_tokens=context.counter.message(text))
        context = replace(context, note_tokens=state.note_tokens)
    if state.folds == before.folds:
        return Reduced(context, state)
    recalled = {fold.id: fold.recall for fold in before.folds}
    state = replace(state, folds=tuple(replace(fold, recall=recalled.get(fold.id, False)) for fold in state.folds))
    known = {summary.id: summary for summary in summaries}
    blocks = summary_blocks([known[fold.id] for fold in state.folds], state.folds, rules)
    tokens = count_summaries(context.counter, blocks, state.folds)
    context = replace(context, summaries=blocks, summary_tokens=tokens)
    return Reduced(context, replace(state, summary_tokens=tokens))


def _without_hint(stub: Stub, event: Event, counter: Counter) -> Stub:
    """Return the stub without its hint, with its tokens counted again."""
    reworded = replace(stub, recall=False, text=wording.without_recall(stub.text, stub.seq))
    if stub.text and stub.text == reworded.text:
        return reworded
    block = Item(event, stub.tokens, reworded).block()
    if event.type is EventType.TOOL_CALL and not reworded.text:
        tokens = call_tokens(event, block.arguments, counter)
    elif event.type is EventType.TOOL_RESULT:
        tokens = counter.result(content_text(block.content)) + counter.native(block.native)
    else:
        tokens = stub.tokens - counter.message(stub.text) + counter.message(reworded.text)
    tokens = max(1, tokens)
    return replace(reworded, tokens=tokens, saved=stub.saved + stub.tokens - tokens)


def erase_quotes(frontier: Frontier, seq: int) -> Frontier:
    """Erase a frontier's quotes of the redacted event `seq`; the stub and the file's entry stay."""

    def erased(stub: Stub) -> Stub:
        return replace(stub, keeps=(), outcome="", text=ERASED if stub.text else "")

    stubs = tuple(erased(stub) if stub.seq == seq else stub for stub in frontier.stubs)
    files = tuple((at, ERASED if at == seq else path) for at, path in frontier.left_out.files)
    left_out = replace(frontier.left_out, files=files)
    note = frontier.note.replace(noted_files(frontier.left_out), noted_files(left_out)) if files else frontier.note
    return replace(frontier, stubs=stubs, note=note, left_out=left_out)
