"""Answers about recorded calls, built from their records."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from app.core.log.events import Json
from app.core.log.segments import line_of
from app.core.plan.state.frontier import Frontier
from app.core.record.evictions import without_shown
from app.core.render.formats.parts import plain_text
from app.core.tokens.budget import provider_tokens
from app.core.tokens.models import window_is_assumed
from app.resources.contexts.json import ContextBody
from app.resources.contexts.recordings import Reproduced
from app.resources.contexts.schemas import (
    BreakpointOut,
    CacheOut,
    CalibrationUsed,
    EvictionOut,
    SummaryRef,
    TokensOut,
)
from app.resources.policies.routes import PolicyRef
from app.store.audit import CallRow, StoredEpoch
from app.wings.audit.fates import ABSENT, DispositionChange, EventFate
from app.wings.audit.schemas import (
    CallItem,
    CallOutcome,
    CallRef,
    CallUsage,
    Change,
    ContextAgain,
    DiffOut,
    DispositionRun,
    FirstDifference,
    HistoryItem,
    InjectionRef,
    Manifest,
    ReportedError,
    TokensDiff,
)

_Answer = TypeVar("_Answer", bound=CallRef)


def answer_of(kind: type[_Answer], session: str, call: CallRow, **more: Any) -> _Answer:
    """Return an answer with the fields that the call's record has under the same names, and `more`."""
    recorded = {name: getattr(call, name) for name in kind.model_fields if hasattr(call, name)}
    recorded["policy"] = PolicyRef(name=call.policy[0], version=call.policy[1])
    return kind(**recorded | more, session=session, line=line_of(session))


def call_item(session: str, call: CallRow) -> CallItem:
    """Return a call as an item of a list."""
    return answer_of(
        CallItem,
        session,
        call,
        summaries=call.manifest.summaries,
        outcome=_outcome(call),
        overflow=bool(call.outcome and call.outcome.overflow),
        input_tokens=call.outcome and call.outcome.input_tokens,
    )


def _outcome(call: CallRow) -> CallOutcome | None:
    """Return a call's reported outcome; None until it is reported."""
    found = call.outcome
    if found is None or call.reported_at is None:
        return None
    return CallOutcome(
        reported_at=call.reported_at,
        usage=CallUsage.model_validate(found, from_attributes=True),
        latency_ms=found.latency_ms,
        error=None if found.error is None else ReportedError.model_validate(found.error),
        overflow=found.overflow,
    )


def _tokens(call: CallRow) -> TokensOut:
    manifest = call.manifest
    return TokensOut(
        estimate=call.estimate,
        target=call.target,
        limit=manifest.window,
        limit_assumed=window_is_assumed(call.model, manifest.window),
        reserve=manifest.reserve,
        outside=manifest.outside,
        estimator=manifest.estimator,
        by_source=dict(manifest.by_source),
        calibration=None if manifest.calibration is None else CalibrationUsed(**asdict(manifest.calibration)),
    )


def _summaries(call: CallRow, state: Frontier) -> list[SummaryRef]:
    applied = call.manifest.calibration
    ratio = applied.ratio if applied else 1.0
    return [
        SummaryRef(
            id=f.id, from_seq=f.from_seq, to_seq=f.to_seq, depth=f.depth, tokens=provider_tokens(f.tokens, ratio)
        )
        for f in state.folds
        if f.shown
    ]


def _evictions(call: CallRow, epoch: StoredEpoch) -> list[EvictionOut]:
    """Return the evictions of a call's epoch and format; records of early versions hold their own."""
    own = call.manifest.evictions
    rows = [*(epoch.evictions if own is None else own), *call.manifest.unfit]
    return [EvictionOut.model_validate(row, from_attributes=True) for row in without_shown(rows, epoch.frontier)]


def _cache(call: CallRow, prefix_sha256: bytes) -> CacheOut:
    manifest = call.manifest
    points = zip(call.breakpoints, manifest.breakpoints, strict=False)
    return CacheOut(
        breakpoints=[BreakpointOut(seq=seq, kind=point.kind) for seq, point in points],
        prefix_sha256=prefix_sha256.hex(),
        prefix_tokens=call.estimate - manifest.by_source.get("ephemeral", 0),
    )


def manifest(
    session: str, call: CallRow, epoch: StoredEpoch, runs: Iterable[Mapping[str, Json]], redacted_since: Sequence[int]
) -> Manifest:
    """Return the complete record of a call; `runs` are the dispositions of its events."""
    made_with = call.manifest
    return answer_of(
        Manifest,
        session,
        call,
        tokens=_tokens(call),
        summaries=_summaries(call, epoch.frontier),
        evictions=_evictions(call, epoch),
        cause=epoch.cause,
        cache=_cache(call, made_with.prefix_sha256),
        injections=[InjectionRef(name=name, chars=len(plain_text(content))) for name, content in made_with.injections],
        layers=made_with.layers,
        notice=made_with.notice,
        stalled=made_with.stalled,
        now=made_with.now,
        outcome=_outcome(call),
        dispositions=[DispositionRun.model_validate(run) for run in runs],
        redacted_since=redacted_since,
    )


def rendered_again(session: str, done: Reproduced) -> bytes:
    """Return the response with a call rendered again: the request as its bytes, the rest as `ContextAgain`."""
    call, request = done.call, done.replayed.request
    answer = answer_of(
        ContextAgain,
        session,
        call,
        reproduced=done.is_exact,
        redacted=done.erased,
        request={},
        tokens=_tokens(call),
        summaries=_summaries(call, done.epoch.frontier),
        evictions=_evictions(call, done.epoch),
        cache=_cache(call, request.prefix_sha256),
        sha256=request.sha256.hex(),
        recorded_sha256=call.sha256.hex(),
    )
    ref = answer.model_dump(mode="json", include=set(CallRef.model_fields))
    return ContextBody(ref, request, answer.model_dump(mode="json", exclude={"request", *ref})).json()


def history_item(call: CallRow, fate: EventFate, cause: str) -> HistoryItem:
    """Return an event's fate in a call; `cause` is that of the call's epoch."""
    return HistoryItem(
        call_id=str(call.call_id),
        created_at=call.created_at,
        view=call.view,
        disposition=fate.disposition,
        **_why(fate),
        epoch=call.epoch,
        cause=cause,
        reported=call.reported_at is not None,
    )


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
        a=answer_of(CallRef, session, a),
        b=answer_of(CallRef, session, b),
        identical=first is None and a.format == b.format,
        first_difference=first,
        changes=[_change(change) for change in changes],
        tokens=TokensDiff(a=a.counted, b=b.counted, by_cause=dict(by_cause)),
    )


def _change(change: DispositionChange) -> Change:
    return Change(
        from_seq=change.from_seq,
        to_seq=change.to_seq,
        change=change.kind,
        before=None if change.before == ABSENT else change.before.disposition,
        after=None if change.after == ABSENT else change.after.disposition,
        **_why(change.why),
        epoch=change.decision.epoch,
        cause=change.decision.cause,
        tokens=change.tokens,
    )


def _why(fate: EventFate) -> dict[str, str]:
    """Return the reasons that a fate has; a preview's response omits the others."""
    reasons = {name: getattr(fate, name) for name in ("summary", "reducer", "reason")}
    return {name: reason for name, reason in reasons.items() if reason is not None}
