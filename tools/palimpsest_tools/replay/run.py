"""The replay of one recording, and the check that its log is then complete."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from palimpsest import AsyncPalimpsest, AsyncSession, PalimpsestError
from palimpsest.types import AppendedEvent, ContextOut, EvictionOut

from app.core.lexicon.times import from_seconds, time_text
from app.core.log.events import BOOKKEEPING, PREFIX, canonical_json
from app.core.render.formats import FORMATS
from app.core.tokens.models import CacheProfile
from palimpsest_tools.recordings.recording import AppendEvents, AppendMessages, ModelCall, Object, Recording
from palimpsest_tools.replay.bill import Cache, charge, rules_for
from palimpsest_tools.replay.facts import Outcomes
from palimpsest_tools.replay.options import Options
from palimpsest_tools.replay.report import CallReport, Failure, SessionReport
from palimpsest_tools.replay.requests import Logged, everything, rendered
from palimpsest_tools.server import PAGE, CheckFailed, append, new_session


@dataclass(slots=True)
class _Replay:
    """The state of a session's replay."""

    rules: CacheProfile
    events: list[Object] = field(default_factory=list)
    log: list[Logged] = field(default_factory=list)
    calls: list[CallReport] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    cache: Cache = field(default_factory=Cache)
    cache_of_everything: Cache = field(default_factory=Cache)
    scale: float = 1.0
    events_at_last_call: int = 0


async def replay_session(
    client: AsyncPalimpsest, recording: Recording, id: str, options: Options, on_call: Callable[[CallReport], None]
) -> SessionReport:
    """Replay a recording into the new session `id`.

    The replay continues after a refused context, and ends at a refused append, since later steps need it.
    """
    replay = _Replay(rules_for(options.format_for(recording)))
    outcomes = Outcomes(recording, options)
    window = options.max_tokens
    found = 0
    try:
        async with new_session(client, id, recording=recording.id, **options.settings) as session:
            try:
                window = await options.window(client, recording, f"{id}.size")
                await _steps(replay, session, recording, window, outcomes, on_call)
            except (CheckFailed, PalimpsestError) as error:
                replay.failures.append(Failure.of(f"after event {len(replay.log)}", error))
            if replay.log:
                found, faults = await check_log(session, replay.events)
                replay.failures.extend(faults)
    except (CheckFailed, PalimpsestError) as error:
        replay.failures.append(Failure.of("creating the session", error))
    return SessionReport(
        id=recording.id,
        session=id,
        format=options.format_for(recording),
        window_tokens=window,
        calls=tuple(replay.calls),
        failures=tuple(replay.failures),
        events=found,
        notes=(*recording.notes, *outcomes.notes()),
    )


async def _steps(
    replay: _Replay,
    session: AsyncSession,
    recording: Recording,
    window: int | None,
    outcomes: Outcomes,
    on_call: Callable[[CallReport], None],
) -> None:
    number, options = 0, outcomes.options
    for step in recording.batches():
        if not isinstance(step, ModelCall):
            _record_append(replay, step, await append(session, step))
            continue
        number += 1
        now = None if step.at is None else time_text(from_seconds(step.at))
        await outcomes.measure(session, step, window, now)
        try:
            answer = await options.context(session, recording, window, now, model=step.model, outside=outcomes.outside)
        except PalimpsestError as error:
            replay.failures.append(Failure.of(f"call {number}", error))
            continue
        report = _call(replay, number, answer, step.at or 0.0)
        replay.calls.append(report)
        if report.estimate > report.target:
            detail = f"estimate {report.estimate} is above target {report.target}"
            replay.failures.append(Failure(f"call {number}", "over-target", detail))
        on_call(report)
        try:
            await outcomes.report(session, step, answer)
        except PalimpsestError as error:
            replay.failures.append(Failure.of(f"outcome of call {number}", error))


def _record_append(replay: _Replay, step: AppendEvents | AppendMessages, answer: Sequence[AppendedEvent]) -> None:
    """Record the appended events with their tokens. Raises CheckFailed if their number is not as sent."""
    sent = expected_events(step, in_conversation=any(map(_is_conversation, replay.events)))
    if len(answer) != len(sent):
        raise CheckFailed("append-miscounted", f"{len(sent)} events were sent, {len(answer)} answered")
    for event, placed in zip(sent, answer, strict=True):
        replay.events.append(event if placed.id is None else {**event, "id": placed.id})
        replay.log.append(Logged(placed.seq, event["type"], placed.tokens))


def _call(replay: _Replay, number: int, answer: ContextOut, at: float) -> CallReport:
    tokens = answer.tokens
    if not answer.evictions:
        counted = sum(event.tokens for event in replay.log)
        replay.scale = tokens.estimate / counted if counted else 1.0
    bill, replay.cache = charge(replay.rules, replay.cache, rendered(answer.request, tokens.estimate, at))
    whole = everything(replay.log, replay.scale, replay.events_at_last_call, at)
    full, replay.cache_of_everything = charge(replay.rules, replay.cache_of_everything, whole)
    replay.events_at_last_call = len(replay.log)
    return CallReport(
        number=number,
        estimate=tokens.estimate,
        target=tokens.target,
        epoch=answer.epoch,
        left_out=left_out(answer.evictions, replay.log),
        saved_tokens=sum(run.tokens_saved for run in answer.evictions if run.reducer != "prefix"),
        bill=bill,
        everything=full,
        estimator=tokens.estimator,
        chars=len(canonical_json(answer.request)),
    )


def left_out(evictions: Sequence[EvictionOut], log: Sequence[Logged]) -> Mapping[str, int]:
    """Return the number of events by disposition.

    A dropped or summarized run counts all events of its span, any other run those with the type of its first event.
    """
    counts: dict[str, int] = {}
    for run in evictions:
        span = log[run.from_seq - 1 : run.to_seq]
        whole = run.disposition in ("dropped", "summarized")
        events = sum(whole or event.type == span[0].type for event in span)
        counts[run.disposition] = counts.get(run.disposition, 0) + events
    return counts


def expected_events(step: AppendEvents | AppendMessages, *, in_conversation: bool) -> list[Object]:
    """Return the events that a step adds to the log; `in_conversation` means that the log has messages before it."""
    if isinstance(step, AppendEvents):
        return list(step.events)
    raw = FORMATS[step.format].read(step.messages)
    # System messages that lead a request are system prompts only before the conversation.
    kinds = {"system.prompt": "system.message"} if in_conversation else {}
    return [event | {"type": kinds.get(event["type"], event["type"])} for event in raw]


def _is_conversation(event: Object) -> bool:
    return event["type"] not in PREFIX and event["type"] not in BOOKKEEPING


async def check_log(session: AsyncSession, sent: Sequence[Object]) -> tuple[int, tuple[Failure, ...]]:
    """Read the whole log back; return the number of its events, and its differences from what was sent."""
    found = 0
    faults: list[Failure] = []
    try:
        async for event in session.list_events(limit=PAGE):
            fault = difference(sent, found, event.to_dict())
            if fault:
                faults.append(Failure(f"event {found + 1}", "log-differs", fault))
            found += 1
    except PalimpsestError as error:
        return found, (*faults, Failure.of("reading the log", error))
    if found < len(sent):
        missing = f"{len(sent)} events were appended, the log holds {found}"
        faults.append(Failure("reading the log", "event-lost", missing))
    return found, tuple(faults)


def difference(sent: Sequence[Object], index: int, event: Object) -> str | None:
    """Return how an event of the log differs from the one sent at `index`; None if it does not."""
    if index >= len(sent):
        return "the log holds more events than were appended"
    if event["seq"] != index + 1:
        return f"seq is {event['seq']}"
    changed = [field for field, value in sent[index].items() if field != "native" and event.get(field) != value]
    return f"{', '.join(changed)} differ from what was sent" if changed else None
