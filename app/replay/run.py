"""Replay one recording: append what happened, and ask for a context where the agent called its model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.core.lexicon.times import from_seconds, time_text
from app.core.log.events import canonical_json
from app.core.tokens.cache_profiles import CacheProfile
from app.recordings.recording import AppendEvents, AppendMessages, ModelCall, Object, Recording
from app.remote.client import Client, RequestFailed
from app.replay.bill import Cache, charge, rules_for
from app.replay.options import Options
from app.replay.report import CallReport, Failure, SessionReport
from app.replay.requests import Logged, everything, rendered
from app.replay.size import window_of
from app.replay.verify import expected_events, is_spoken, verify_log


@dataclass(slots=True)
class _Session:
    """The state of one session's replay."""

    id: str
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
    client: Client, recording: Recording, id: str, options: Options, on_call: Callable[[CallReport], None]
) -> SessionReport:
    """Replay a recording into the new session `id`.

    A refused context is a failure after which the replay goes on; a refused append ends it, since later steps need it.
    """
    session = _Session(id, rules_for(options.format_for(recording)))
    window = options.max_tokens
    found = 0
    try:
        created = await client.put_session(id, options.policy, options.model)
        if created["head"]:
            raise RequestFailed("session-not-new", f"session {id} already holds {created['head']} events")
        if options.share is not None:
            window = await window_of(client, recording, f"{id}.size", options)
        await _steps(client, session, recording, window, options, on_call)
    except RequestFailed as problem:
        session.failures.append(Failure(f"after event {len(session.log)}", problem.type, problem.detail))
    if session.log:
        found, faults = await verify_log(client, id, session.events)
        session.failures.extend(faults)
    return SessionReport(
        id=recording.id,
        session=id,
        format=options.format_for(recording),
        window_tokens=window,
        calls=tuple(session.calls),
        failures=tuple(session.failures),
        events=found,
        notes=recording.notes,
    )


async def _steps(
    client: Client,
    session: _Session,
    recording: Recording,
    window: int | None,
    options: Options,
    on_call: Callable[[CallReport], None],
) -> None:
    asked = options.context(recording, window)
    number = 0
    for step in recording.batches():
        if not isinstance(step, ModelCall):
            _record_append(session, step, await client.append(session.id, step))
            continue
        number += 1
        now = None if step.at is None else time_text(from_seconds(step.at))
        body = asked if now is None else {**asked, "now": now}
        try:
            answer = await client.context(session.id, body)
        except RequestFailed as problem:
            session.failures.append(Failure(f"call {number}", problem.type, problem.detail))
            continue
        report = _call(session, number, answer, step.at or 0.0)
        session.calls.append(report)
        if report.estimate > report.target:
            detail = f"estimate {report.estimate} is above target {report.target}"
            session.failures.append(Failure(f"call {number}", "over-target", detail))
        on_call(report)


def _record_append(session: _Session, step: AppendEvents | AppendMessages, answer: Sequence[Object]) -> None:
    """Record the events that were appended, with their tokens. Raises RequestFailed if their number is not as sent."""
    sent = expected_events(step, spoken=any(map(is_spoken, session.events)))
    if len(answer) != len(sent):
        raise RequestFailed("append-miscounted", f"{len(sent)} events were sent, {len(answer)} answered")
    for event, placed in zip(sent, answer, strict=True):
        session.events.append(event if placed["id"] is None else {**event, "id": placed["id"]})
        session.log.append(Logged(placed["seq"], event["type"], placed["tokens"]))


def _call(session: _Session, number: int, answer: Object, at: float) -> CallReport:
    tokens = answer["tokens"]
    estimate = tokens["estimate"]
    if not answer["evictions"]:
        counted = sum(event.tokens for event in session.log)
        session.scale = estimate / counted if counted else 1.0
    bill, session.cache = charge(session.rules, session.cache, rendered(answer["request"], estimate, at))
    whole = everything(session.log, session.scale, session.events_at_last_call, at)
    full, session.cache_of_everything = charge(session.rules, session.cache_of_everything, whole)
    session.events_at_last_call = len(session.log)
    return CallReport(
        number=number,
        estimate=estimate,
        target=tokens["target"],
        epoch=answer["epoch"],
        left_out=left_out(answer["evictions"], session.log),
        saved_tokens=sum(run["tokens_saved"] for run in answer["evictions"]),
        bill=bill,
        everything=full,
        estimator=tokens["estimator"],
        chars=len(canonical_json(answer["request"])),
    )


def left_out(evictions: Sequence[Object], log: Sequence[Logged]) -> Mapping[str, int]:
    """The number of events by disposition.

    A dropped or summarized run counts all events of its span, any other run those with the type of its first event.
    """
    counts: dict[str, int] = {}
    for run in evictions:
        span = log[run["from_seq"] - 1 : run["to_seq"]]
        whole = run["disposition"] in ("dropped", "summarized")
        events = sum(whole or event.type == span[0].type for event in span)
        counts[run["disposition"]] = counts.get(run["disposition"], 0) + events
    return counts
