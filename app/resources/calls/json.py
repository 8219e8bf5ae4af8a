"""Recorded calls as JSON: list items, manifests, renderings and comparisons."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from app.core.assembly.assemble import CallRecord
from app.core.audit.explain import ABSENT, DispositionChange, EventFate
from app.core.lexicon.times import time_text
from app.core.log.events import Json, canonical_json
from app.core.log.segments import line_of, session_of
from app.core.plan.state.frontier import Frontier
from app.core.record.evictions import eviction_row, without_shown
from app.core.render.formats.parts import plain_text
from app.core.render.request import Request
from app.core.tokens.budget import provider_tokens
from app.core.tokens.models import window_is_assumed
from app.resources.calls.explaining import CallDiff, EventInCall
from app.resources.calls.recordings import ExplainedCall, Reproduced
from app.store.audit import CallRow, StoredEpoch


def context_fields(session: str, call: CallRecord) -> dict[str, Json]:
    """Return the fields that identify a call's context and its settings."""
    return {
        "session": session_of(session),
        "line": line_of(session),
        "view": call.view,
        "head": call.head,
        "epoch": call.epoch,
        "format": call.format,
        "model": call.model,
        "policy": {"name": call.policy[0], "version": call.policy[1]},
    }


def _ref(session: str, call: CallRow) -> dict[str, Json]:
    """Return the fields that identify a recorded call."""
    made = {"call_id": str(call.call_id), "created_at": time_text(call.created_at)}
    return {**made, **context_fields(session, call)}


def call_item(session: str, call: CallRow) -> dict[str, Json]:
    """Return a call as an item of a list."""
    return {
        **_ref(session, call),
        "estimate": call.estimate,
        "target": call.target,
        "evicted_tokens": call.evicted_tokens,
        "summaries": call.manifest.summaries,
        "outcome": _outcome(call),
        "overflow": bool(call.outcome and call.outcome.overflow),
        "input_tokens": call.outcome.input_tokens if call.outcome else None,
        "retry_of": None if call.retry_of is None else str(call.retry_of),
        "sha256": call.sha256.hex(),
    }


def _outcome(call: CallRow) -> Json:
    """Return a call's reported outcome; None until it is reported."""
    found = call.outcome
    if found is None or call.reported_at is None:
        return None
    return {
        "reported_at": time_text(call.reported_at),
        "usage": found,
        "latency_ms": found.latency_ms,
        "error": found.error,
        "overflow": found.overflow,
    }


def _tokens(call: CallRow) -> dict[str, Json]:
    manifest = call.manifest
    return {
        "estimate": call.estimate,
        "target": call.target,
        "limit": manifest.window,
        "limit_assumed": window_is_assumed(call.model, manifest.window),
        "reserve": manifest.reserve,
        "outside": manifest.outside,
        "estimator": manifest.estimator,
        "by_source": manifest.by_source,
        "calibration": manifest.calibration and asdict(manifest.calibration),
    }


def _summaries(call: CallRow, state: Frontier) -> list[Json]:
    applied = call.manifest.calibration
    ratio = applied.ratio if applied else 1.0
    return [
        {
            "id": f.id,
            "from_seq": f.from_seq,
            "to_seq": f.to_seq,
            "depth": f.depth,
            "tokens": provider_tokens(f.tokens, ratio),
        }
        for f in state.folds
        if f.shown
    ]


def _evictions(call: CallRow, epoch: StoredEpoch) -> Sequence[Json]:
    """Return the evictions of a call's epoch and format; records of early versions hold their own."""
    own = call.manifest.evictions
    rows = [*(epoch.evictions if own is None else own), *call.manifest.unfit]
    return [eviction_row(row) for row in without_shown(rows, epoch.frontier)]


def _cache(call: CallRow) -> dict[str, Json]:
    manifest = call.manifest
    points = zip(call.breakpoints, manifest.breakpoints, strict=False)
    return {
        "breakpoints": [{"seq": seq, "kind": point.kind} for seq, point in points],
        "prefix_sha256": manifest.prefix_sha256.hex(),
        "prefix_tokens": call.estimate - manifest.by_source.get("ephemeral", 0),
    }


def explained_json(session: str, found: ExplainedCall) -> dict[str, Json]:
    """Return the complete record of a call."""
    call, manifest = found.call, found.call.manifest
    return {
        **_ref(session, call),
        "render_version": call.render_version,
        "tokens": _tokens(call),
        "summaries": _summaries(call, found.epoch.frontier),
        "evictions": _evictions(call, found.epoch),
        "cause": found.epoch.cause,
        "cache": _cache(call),
        "injections": [{"name": name, "chars": len(plain_text(content))} for name, content in manifest.injections],
        "layers": manifest.layers,
        "notice": manifest.notice,
        "stalled": manifest.stalled,
        "now": manifest.now and time_text(manifest.now),
        "retry_of": None if call.retry_of is None else str(call.retry_of),
        "outcome": _outcome(call),
        "expires_at": None if call.expires_at is None else time_text(call.expires_at),
        "dispositions": found.dispositions,
        "redacted_since": found.redacted_since,
        "sha256": call.sha256.hex(),
    }


def rendered_again_json(session: str, reproduced: Reproduced) -> bytes:
    """Return a call rendered again, as a JSON text."""
    call, request = reproduced.call, reproduced.replayed.request
    head = {**_ref(session, call), "reproduced": reproduced.is_exact, "redacted": list(reproduced.erased)}
    tail = {
        "tokens": _tokens(call),
        "summaries": _summaries(call, reproduced.epoch.frontier),
        "evictions": _evictions(call, reproduced.epoch),
        "cache": {**_cache(call), "prefix_sha256": request.prefix_sha256.hex()},
        "sha256": request.sha256.hex(),
        "recorded_sha256": call.sha256.hex(),
    }
    return splice_request(head, request, tail)


def splice_request(head: Mapping[str, Json], request: Request, tail: Mapping[str, Json]) -> bytes:
    """Return one JSON object with the fields of `head`, the request, and the fields of `tail`.

    The request is JSON text already; parsing it only to serialize it again would double the work.
    """
    start, rest = canonical_json(head)[:-1], canonical_json(tail)[1:]
    return b"".join((start.encode(), b',"request":', request.body, b",", rest.encode()))


def history_item_json(seen: EventInCall) -> dict[str, Json]:
    """Return an item of an event's history."""
    return {
        "call_id": str(seen.call.call_id),
        "created_at": time_text(seen.call.created_at),
        "view": seen.call.view,
        "disposition": seen.fate.disposition,
        **_why(seen.fate),
        "epoch": seen.call.epoch,
        "cause": seen.cause,
        "reported": seen.call.reported_at is not None,
    }


def diff_json(session: str, diff: CallDiff, *, planned: bool = False) -> dict[str, Json]:
    """Return the differences between two calls. `planned`: the second was not recorded and has no id or time."""
    unmade: dict[str, Json] = {"call_id": None, "created_at": None} if planned else {}
    return {
        "a": _ref(session, diff.a),
        "b": _ref(session, diff.b) | unmade,
        "identical": diff.first_difference is None and diff.a.format == diff.b.format,
        "first_difference": diff.first_difference,
        "changes": [_change(change) for change in diff.changes],
        "tokens": {"a": diff.a.counted, "b": diff.b.counted, "by_cause": diff.by_cause},
    }


def _change(change: DispositionChange) -> dict[str, Json]:
    return {
        "from_seq": change.from_seq,
        "to_seq": change.to_seq,
        "change": change.kind,
        "from": None if change.before == ABSENT else change.before.disposition,
        "to": None if change.after == ABSENT else change.after.disposition,
        **_why(change.why),
        "epoch": change.decision.epoch,
        "cause": change.decision.cause,
        "tokens": change.tokens,
    }


def _why(fate: EventFate) -> dict[str, Json]:
    fields = {"summary": fate.summary, "reducer": fate.reducer, "reason": fate.reason}
    return {name: value for name, value in fields.items() if value is not None}
