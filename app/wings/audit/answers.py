"""Answers about recorded calls, built from their records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.core.audit.declined import Declined
from app.core.log.events import Json
from app.core.log.segments import line_of
from app.core.record.evictions import eviction_row, without_shown
from app.core.render.formats.parts import plain_text
from app.core.tokens.budget import provider_tokens
from app.http.fields import Answer, answer_of
from app.resources.contexts.json import ContextBody, parts_json
from app.resources.contexts.recordings import Reproduced
from app.store.audit import CallRow, StoredEpoch
from app.wings.audit.fates import ABSENT, DispositionChange, EventFate
from app.wings.audit.schemas import (
    CallItem,
    CallOutcome,
    CallRef,
    Change,
    ContextAgain,
    DiffOut,
    FirstDifference,
    HistoryItem,
    InjectionRef,
    Manifest,
    TokensDiff,
)


def _about(kind: type[Answer], session: str, call: CallRow, **more: Any) -> Answer:
    """Return an answer about a call."""
    return answer_of(kind, call, call.manifest, **more, session=session, line=line_of(session))


def call_item(session: str, call: CallRow) -> CallItem:
    """Return a call as an item of a list."""
    return _about(
        CallItem,
        session,
        call,
        outcome=_outcome(call),
        overflow=bool(call.outcome and call.outcome.overflow),
        input_tokens=call.outcome and call.outcome.input_tokens,
    )


def _outcome(call: CallRow) -> CallOutcome | None:
    """Return a call's reported outcome; None until it is reported."""
    found = call.outcome
    if found is None or call.reported_at is None:
        return None
    return answer_of(CallOutcome, found, call, usage=found)


def _parts(call: CallRow, epoch: StoredEpoch, prefix_sha256: bytes) -> dict[str, Json]:
    """Return the parts of a response that describe a call's request; records of early versions hold evictions."""
    applied, own = call.manifest.calibration, call.manifest.evictions
    ratio = applied.ratio if applied else 1.0
    rows = without_shown([*(epoch.evictions if own is None else own), *call.manifest.unfit], epoch.frontier)
    evictions = list(map(eviction_row, rows))
    return parts_json(
        call, epoch.frontier.folds, evictions, prefix_sha256, lambda tokens: provider_tokens(tokens, ratio)
    )


def manifest(
    session: str,
    call: CallRow,
    epoch: StoredEpoch,
    runs: Iterable[Mapping[str, Json]],
    redacted_since: Sequence[int],
    declined: Sequence[Declined] | None,
) -> Manifest:
    """Return the complete record of a call; `runs` are the dispositions of its events.

    `declined` are the reducers that evicted nothing, None if unknown.
    """
    injected = call.manifest.injections
    return _about(
        Manifest,
        session,
        call,
        **_parts(call, epoch, call.manifest.prefix_sha256),
        cause=epoch.cause,
        injections=[InjectionRef(name=name, chars=len(plain_text(content))) for name, content in injected],
        outcome=_outcome(call),
        dispositions=list(runs),
        redacted_since=redacted_since,
        declined=declined,
        moment=call.manifest.moment,
    )


def context_again(session: str, done: Reproduced) -> bytes:
    """Return the response with a call rendered again: the request as its bytes, the rest as `ContextAgain`."""
    call, request = done.call, done.replayed.request
    answer = _about(
        ContextAgain,
        session,
        call,
        **_parts(call, done.epoch, request.prefix_sha256),
        reproduced=done.is_exact,
        redacted=done.erased,
        request={},
        sha256=request.sha256.hex(),
        recorded_sha256=call.sha256.hex(),
    )
    rest = answer.model_dump(mode="json", exclude={"request"})
    ref = {name: rest.pop(name) for name in CallRef.model_fields}
    return ContextBody(ref, request, rest).json()


def history_item(call: CallRow, fate: EventFate, cause: str) -> HistoryItem:
    """Return an event's fate in a call; `cause` is that of the call's epoch."""
    return answer_of(HistoryItem, call, fate, cause=cause, reported=call.reported_at is not None)


def diff(
    session: str,
    a: CallRow,
    b: CallRow,
    first: FirstDifference | None,
    changes: Iterable[DispositionChange],
    by_cause: Mapping[str, int],
) -> DiffOut:
    """Return the differences from call `a` to call `b`: the first block, the events, and the tokens by cause."""
    return DiffOut(
        a=_about(CallRef, session, a),
        b=_about(CallRef, session, b),
        identical=first is None and a.format == b.format,
        first_difference=first,
        changes=[_change(change) for change in changes],
        tokens=TokensDiff(a=a.counted, b=b.counted, by_cause=dict(by_cause)),
    )


def _change(change: DispositionChange) -> Change:
    return answer_of(
        Change,
        change,
        change.decision,
        change=change.kind,
        before=None if change.before == ABSENT else change.before.disposition,
        after=None if change.after == ABSENT else change.after.disposition,
        **_why(change.why),
    )


def _why(fate: EventFate) -> dict[str, str]:
    """Return the reasons that a fate has; a preview's response omits the others."""
    reasons = {name: getattr(fate, name) for name in ("summary", "reducer", "reason")}
    return {name: reason for name, reason in reasons.items() if reason is not None}
