"""Responses with contexts, as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from app.core.assembly.assemble import Assembled, Rendered
from app.core.assembly.inputs import ContextInputs
from app.core.audit.client_plan import MessagePlan
from app.core.log.events import Json, canonical_json
from app.core.log.segments import line_of, session_of
from app.core.plan.reducers.last_resort import REDUCER
from app.core.record.evictions import Eviction, eviction_row
from app.core.render.request import Request
from app.core.tokens.models import window_is_assumed
from app.resources.contexts.service import ContextAnswer
from app.resources.reconcile.outcome import Reconciled

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


def context_body(answer: ContextAnswer) -> ContextBody:
    """Return the response to a context request."""
    return body_of(answer.session, answer.assembled, answer.compaction, answer.reason)


def reconciled_body(done: Reconciled) -> ContextBody:
    """Return the response to a context request with the client's complete messages."""
    answer = done.answer
    extra: dict[str, Json] = {
        "appended": [{"index": index, **receipt._asdict()} for index, receipt in done.appended],
        "plan": [_message_json(one) for one in done.plan.messages],
        "inserted": [
            {name: value for name, value in asdict(one).items() if value is not None} for one in done.plan.inserted
        ],
    }
    return body_of(answer.session, answer.assembled, answer.compaction, answer.reason, extra)


def _message_json(plan: MessagePlan) -> dict[str, Json]:
    shown: dict[str, Json] = {"index": plan.index, "action": plan.action, "seqs": plan.seqs}
    if plan.text is not None:
        shown["text"] = plan.text
    if plan.parts:
        shown["parts"] = [
            {name: value for name, value in asdict(part).items() if value is not None} for part in plan.parts
        ]
    return shown


def body_of(
    session: str,
    assembled: Assembled,
    compaction: str,
    reason: str | None,
    extra: Mapping[str, Json] | None = None,
) -> ContextBody:
    """Return the response with an assembled context."""
    inputs, rendered, call = assembled.inputs, assembled.rendered, assembled.call
    by_source, stalled = call.manifest.by_source, rendered.plan.stalled
    gone = sorted((*rendered.evictions, *rendered.unfit), key=lambda row: row.from_seq)
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
        "tokens": {
            "estimate": call.estimate,
            "target": call.target,
            "limit": inputs.budget.window,
            "limit_assumed": inputs.request.max_tokens is None and window_is_assumed(call.model, inputs.budget.window),
            "reserve": inputs.budget.reserve,
            "outside": inputs.budget.outside,
            "estimator": inputs.counter.estimator.name,
            "by_source": by_source,
            "calibration": call.manifest.calibration and asdict(call.manifest.calibration),
        },
        "summaries": _summaries(inputs, rendered),
        "evictions": [eviction_row(row) | {"tokens_saved": inputs.budget.shown(row.tokens_saved)} for row in gone],
        "cache": {
            "breakpoints": [{"seq": point.seq, "kind": point.kind} for point in rendered.request.breakpoints],
            "prefix_sha256": rendered.request.prefix_sha256.hex(),
            "prefix_tokens": call.estimate - by_source["ephemeral"],
        },
        "compaction": _compaction(compaction, stalled, reason, gone),
        "sha256": rendered.request.sha256.hex(),
        **(extra or {}),
    }
    return ContextBody(head, rendered.request, tail)


def _summaries(inputs: ContextInputs, rendered: Rendered) -> list[Json]:
    """Return the summaries whose text the context shows, in order."""
    shown = (fold for fold in rendered.plan.state.folds if fold.shown)
    return [
        {
            "id": f.id,
            "from_seq": f.from_seq,
            "to_seq": f.to_seq,
            "depth": f.depth,
            "tokens": inputs.budget.shown(f.tokens),
        }
        for f in shown
    ]


def _compaction(state: str, stalled: str | None, reason: str | None, gone: Sequence[Eviction]) -> dict[str, Json]:
    """Return the state of compaction. A failed run counts as a stall only if a summary would have helped.

    `reason` says why a requested compaction has no effect.
    """
    if state == "failed":
        helped = stalled is not None or any(row.disposition == "dropped" and row.reducer == REDUCER for row in gone)
        state, stalled = ("stalled", "; ".join(filter(None, (stalled, FAILED)))) if helped else ("none", None)
    return {"state": state if stalled is None else "stalled", "reason": stalled or reason}
