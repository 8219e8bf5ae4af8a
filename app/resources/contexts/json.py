"""Responses with contexts, as JSON."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from app.core import dataclass
from app.core.assembly.assemble import Assembled, CallRecord
from app.core.lexicon.times import time_text
from app.core.log.events import Json, canonical_json
from app.core.log.segments import line_of, session_of
from app.core.plan.reducers.last_resort import REDUCER
from app.core.plan.state.frontier import Fold
from app.core.record import calibration_json
from app.core.record.evictions import Eviction, eviction_row
from app.core.render.request import Request
from app.core.tokens.models import window_is_assumed
from app.resources.contexts.service import ContextAnswer
from app.resources.reconcile.messages import Reconciled

FAILED: Final = "the last compaction failed; GET .../compactions has the reason"


@dataclass(frozen=True, slots=True)
class ContextBody:
    """A response: the fields before and after the provider request, and that request.

    Stored head and tail, with the request rendered again, give the same response.
    """

    head: Mapping[str, Json]
    request: Request
    tail: Mapping[str, Json]

    def json(self) -> bytes:
        """Return the response as JSON.

        The request is JSON text already; parsing it only to serialize it again would double the work.
        """
        start, rest = canonical_json(self.head)[:-1], canonical_json(self.tail)[1:]
        return b"".join((start.encode(), b',"request":', self.request.body, b",", rest.encode()))

    def stored(self) -> Mapping[str, Json]:
        """Return the stored part of the response: everything but the request, which can be rendered again."""
        return {"head": self.head, "tail": self.tail}


def context_body(answer: ContextAnswer, extra: Mapping[str, Json] | None = None) -> ContextBody:
    """Return the response to a context request, with further fields."""
    return body_of(answer.session, answer.assembled, answer.compaction, answer.reason, extra)


def reconciled_body(done: Reconciled, extra: Mapping[str, Json] | None = None) -> ContextBody:
    """Return the response to a context request with the client's complete messages, with further fields."""
    plan: dict[str, Json] = {
        "appended": [{"index": index, **receipt._asdict()} for index, receipt in done.appended],
        "plan": [asdict(one, dict_factory=_without_none) for one in done.plan.messages],
        "inserted": [asdict(one, dict_factory=_without_none) for one in done.plan.inserted],
    }
    return context_body(done.answer, {**plan, **(extra or {})})


def _without_none(fields: Iterable[tuple[str, Json]]) -> dict[str, Json]:
    return {name: value for name, value in fields if value is not None}


def body_of(
    session: str, assembled: Assembled, compaction: str, reason: str | None, extra: Mapping[str, Json] | None = None
) -> ContextBody:
    """Return the response with an assembled context."""
    inputs, rendered, call = assembled.inputs, assembled.rendered, assembled.call
    gone = sorted((*rendered.evictions, *rendered.unfit), key=lambda row: row.from_seq)
    shown = inputs.budget.shown
    evicted = [eviction_row(row) | {"tokens_saved": shown(row.tokens_saved)} for row in gone]
    head: dict[str, Json] = {
        "call_id": str(call.call_id),
        "session": session_of(session),
        "line": line_of(session),
        "view": call.view,
        "head": call.head,
        "epoch": call.epoch,
        "format": call.format,
        "model": call.model,
        "policy": {"name": call.policy[0], "version": call.policy[1]},
    }
    tail: dict[str, Json] = {
        **parts_json(call, rendered.plan.state.folds, evicted, rendered.request.prefix_sha256, shown),
        "compaction": _compaction(compaction, rendered.plan.stalled, reason, gone),
        "sha256": rendered.request.sha256.hex(),
        **(extra or {}),
    }
    return ContextBody(head, rendered.request, tail)


def parts_json(
    call: CallRecord, folds: Iterable[Fold], evictions: list[Json], prefix_sha256: bytes, shown: Callable[[int], int]
) -> dict[str, Json]:
    """Return the parts of a response that describe how a call's request was made, for a new or a recorded call.

    `tokens` has the budget and its use, `summaries` those whose text is shown, in order, and `cache` the part of the
    request that the provider can cache. `shown` converts the estimator's tokens into the model's.
    """
    made_with = call.manifest
    points, expires_at = zip(call.breakpoints, made_with.breakpoints, strict=False), made_with.cache_expires_at
    return {
        "tokens": {
            "estimate": call.estimate,
            "target": call.target,
            "limit": made_with.window,
            "limit_assumed": not made_with.window_stated and window_is_assumed(call.model, made_with.window),
            "reserve": made_with.reserve,
            "outside": made_with.outside,
            "estimator": made_with.estimator,
            "by_source": made_with.by_source,
            "calibration": made_with.calibration and calibration_json(made_with.calibration),
        },
        "summaries": [
            {"id": f.id, "from_seq": f.from_seq, "to_seq": f.to_seq, "depth": f.depth, "tokens": shown(f.tokens)}
            for f in folds
            if f.shown
        ],
        "evictions": evictions,
        "cache": {
            "breakpoints": [{"seq": seq, "kind": point.kind} for seq, point in points],
            "prefix_sha256": prefix_sha256.hex(),
            "prefix_tokens": call.estimate - made_with.by_source.get("ephemeral", 0),
            "tokens": made_with.cached_tokens,
            "expires_at": None if expires_at is None else time_text(expires_at),
        },
    }


def _compaction(state: str, stalled: str | None, reason: str | None, gone: Sequence[Eviction]) -> dict[str, Json]:
    """Return the state of compaction. A failed run counts as a stall only if a summary would have helped.

    `reason` says why a requested compaction has no effect.
    """
    if state == "failed":
        helped = stalled is not None or any(row.disposition == "dropped" and row.reducer == REDUCER for row in gone)
        state, stalled = ("stalled", "; ".join(filter(None, (stalled, FAILED)))) if helped else ("none", None)
    return {"state": state if stalled is None else "stalled", "reason": stalled or reason}
