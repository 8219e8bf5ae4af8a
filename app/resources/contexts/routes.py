"""Contexts: get the request of the next model call."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.core import dataclass
from app.core.assembly.assemble import Assembled, CallRecord
from app.core.assembly.inputs import OBSERVED_VIEW, ContextRequest, Injection
from app.core.errors import InvalidRequest
from app.core.lexicon.times import time_text
from app.core.log.events import Json, canonical_json
from app.core.log.segments import is_held_out, line_of, session_of
from app.core.plan.reducers.last_resort import REDUCER
from app.core.plan.state.frontier import Fold
from app.core.record import calibration_json
from app.core.record.evictions import Eviction, eviction_row
from app.core.render.request import Request as RenderedRequest
from app.core.tokens.models import window_is_assumed
from app.http.errors import Forbidden
from app.http.fields import QUERY
from app.http.openapi import body_of_model, parameters_of
from app.http.operation import Idempotency, Resource, Who, idempotency_key
from app.http.requests import read_model
from app.resources.contexts.recordings import Recordings
from app.resources.contexts.schemas import ContextIn, ContextOut, ContextQuery
from app.resources.contexts.service import Assembly, ContextAnswer, KeepContext
from app.resources.contexts.steps import AgentStep, StepDone, StepFailed, failing_part
from app.resources.events.routes import append_request, appended_json
from app.resources.events.schemas import EventsIn, MessagesIn
from app.resources.feedback.routes import outcome_out
from app.resources.feedback.service import Feedback
from app.resources.layers.service import check_content
from app.resources.reconcile.messages import ClientList, Reconciled
from app.store.answers import AlreadyAnswered, KeyClaim, ResponseToStore
from app.tenants import Caller

router = Resource("context", schemas=(ContextIn,), scope="read")

NO_RESULTS: Final[Mapping[str, Json]] = MappingProxyType({})

PROBLEM_SLUGS: Final = ("invalid-policy", "context-infeasible", "nothing-to-send", "injection-over-reserve", "conflict")


@dataclass(frozen=True, slots=True)
class ContextResponse:
    """A response: the fields before and after the provider request, and that request.

    Stored `before` and `after`, with the request rendered again, give the same response.
    """

    before: Mapping[str, Json]
    request: RenderedRequest
    after: Mapping[str, Json]

    def json(self) -> bytes:
        """Return the response as JSON. The request is JSON text already: parsing it would double the work."""
        start, rest = canonical_json(self.before)[:-1], canonical_json(self.after)[1:]
        return b"".join((start.encode(), b',"request":', self.request.body, b",", rest.encode()))

    def stored(self) -> Mapping[str, Json]:
        """Return the stored part of the response: everything but the request, which can be rendered again."""
        return {"head": self.before, "tail": self.after}  # names in stored responses


# FastAPI's parsing of a dozen parameters takes as long as planning a context, so this hot route parses them itself.
@router.operation(
    "GET",
    "/v1/sessions/{sid}/context",
    resolves_line=False,
    summary="Get the next context",
    returns=ContextOut,
    problems=PROBLEM_SLUGS,
    openapi_extra=parameters_of(ContextQuery),
)
async def get_context(request: Request, who: Who) -> Response:
    """Get the context of the next model call: a request within the token budget that the provider accepts unchanged.

    The call is recorded before the response is sent. If nothing has changed, another request returns the same bytes.
    """
    sid: str = request.path_params["sid"]
    try:
        query = ContextQuery.model_validate(dict(request.query_params), context=QUERY)
    except ValidationError as error:
        found = [{**one, "loc": ("query", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(found) from None
    assembly: Assembly = request.state.services.assembly
    answer = await assembly.context(who.tenant_id, sid, ContextRequest(**vars(query)))
    return Response(context_response(answer).json(), media_type="application/json")


@router.operation(
    "POST",
    "/v1/sessions/{sid}/context",
    resolves_line=False,
    summary="Get the next context, with options in a body",
    returns=ContextOut,
    problems=(
        *(*PROBLEM_SLUGS, "invalid-message", "invalid-event", "unknown-call", "duplicate-call"),
        *("idempotency-conflict", "not-reproducible", "too-many-sessions", "session-erased"),
        *("too-many-lines", "too-many-events", "head-conflict"),
    ),
    openapi_extra=body_of_model(ContextIn, required=False),
)
async def post_context(request: Request, who: Who) -> Response:
    """Get the context of the next model call, with options that need a body, and optionally a whole step of an agent.

    The options are injected content, another policy for the view, the time of a replayed call, and the call to retry.

    With `outcome` and `append`, one request does what an agent does between two model calls: report the outcome of the
    last call, append what has happened since, and get the context, in this order and in one transaction. If the outcome
    or the append fails, or the request's policy is unknown or invalid, nothing is recorded. If no context can be made
    for another reason, they stay recorded, and the problem has their results. With `wait_ms`, `force`, `messages` or
    `retry_of` the context follows after their commit: they stay recorded, whatever fails then.

    With `messages`, the client's complete conversation, new messages are first appended to the line of the session that
    the conversation continues. That append stays too if no context can be made.
    """
    sid: str = request.path_params["sid"]
    body = await read_model(request, ContextIn)
    once = Idempotency(request, who, body, idempotency_key(request))
    services = request.state.services
    if (kept := await once.stored_response()) is not None:
        return await _repeat_response(services.recordings, who, kept)
    check_fields(body)
    try:
        made = await _make(services, who, sid, body, once)
    except AlreadyAnswered:
        return await _repeat_response(services.recordings, who, await once.concurrent_response())
    return Response(made.json(), media_type="application/json")


async def _make(services: Any, who: Caller, sid: str, body: ContextIn, once: Idempotency) -> ContextResponse:
    """Report the outcome and append the events, if there are any, then make the context: in one transaction, unless the
    context must follow their commit."""
    if body.outcome is None and body.append is None:
        return await _make_alone(services, who, sid, body, once)
    _check_ingest(who, "outcome and append")
    step = AgentStep()
    try:
        step = _parse_step(body, once.claim)
        if step.append is not None:
            with failing_part("append"):
                services.event_rates.take(who.tenant_id, len(step.append.drafts))
        if body.messages is None and body.retry_of is None and body.wait_ms is None and not body.force:
            step = replace(step, context=await context_request(body, who, sid, services.feedback))
            show = partial(_step_response, sid, step)
            keep: ResponseToStore[StepDone] | None = once.response_to_store(lambda done: show(done).stored())
            return show(await services.steps.take(who.tenant_id, sid, step, keep))
        done = await services.steps.take(who.tenant_id, sid, step)
        with failing_part("context", done):
            return await _make_alone(services, who, sid, body, once, _results(sid, step, done))
    except StepFailed as failed:
        error, index = failed.error, failed.error.fields.get("index")
        error.fields = {**error.fields, "part": failed.part, **_results(sid, step, failed.done)}
        if failed.part == "append" and "field" in error.fields and index is None:
            error.fields["field"] = f"append.{error.fields['field']}".rstrip(".")
        raise error from None


async def _make_alone(
    services: Any, who: Caller, sid: str, body: ContextIn, once: Idempotency, results: Mapping[str, Json] = NO_RESULTS
) -> ContextResponse:
    """Make the context; the response also has `results`, of what was recorded before it."""
    line = sid if body.retry_of is None else await services.lines.of_call(who.tenant_id, sid, body.retry_of)
    request = await context_request(body, who, line, services.feedback)
    if body.messages is None:
        keep: KeepContext | None = once.response_to_store(lambda answer: context_response(answer, results).stored())
        return context_response(await services.assembly.context(who.tenant_id, line, request, keep=keep), results)
    _check_ingest(who, "messages")
    none = body.system is not None and not body.system
    sent = ClientList(request.format, body.messages, body.system, body.tools, prompts_complete=none)
    given = await services.reconcile.read(who.tenant_id, sid, sent)
    show = partial(reconciled_response, extra=results)
    kept: ResponseToStore[Reconciled] | None = once.response_to_store(lambda done: show(done).stored())
    return show(await services.reconcile.context(who.tenant_id, sid, given, request, kept))


def _parse_step(body: ContextIn, claim: KeyClaim | None) -> AgentStep:
    """Return the outcome and the append of a request. Raises StepFailed."""
    outcome = None if body.outcome is None else (body.outcome.call_id, body.outcome.report())
    if body.append is None:
        return AgentStep(outcome)
    with failing_part("append"):
        model = MessagesIn if body.append.keys() & {"format", "messages"} else EventsIn
        append = append_request(body.append, model, None, b"")
    if claim is not None:
        append = replace(append, key=claim.for_append.key, request_sha256=claim.request_sha256)
    return AgentStep(outcome, append)


def _step_response(sid: str, step: AgentStep, done: StepDone) -> ContextResponse:
    """Return the response to a step with a context."""
    if done.answer is None:
        raise RuntimeError("a step with a context has made none")
    return context_response(done.answer, _results(sid, step, done))


def _results(sid: str, step: AgentStep, done: StepDone) -> dict[str, Any]:
    """Return the results of a step's outcome and append, as their own operations return them."""
    results: dict[str, Any] = {}
    if step.append is not None and done.appended is not None:
        results["appended"] = appended_json(step.append, done.appended)
    if done.verdict is not None:
        results["outcome"] = outcome_out(session_of(sid), done.verdict).model_dump(mode="json", exclude_none=True)
    return results


def check_fields(body: ContextIn) -> None:
    """Raise InvalidRequest for fields that require messages, and for fields that exclude each other."""
    for field in ("system", "tools"):
        if body.messages is None and getattr(body, field) is not None:
            raise InvalidRequest(f"{field} requires messages", field=field)
    for field in ("messages", "at"):
        if body.append is not None and getattr(body, field) is not None:
            raise InvalidRequest(f"append excludes {field}", field=field)
    for field in ("view", "retry_of"):
        if body.observe and field in body.model_fields_set:
            raise InvalidRequest(f"observe excludes {field}", field=field)
    if body.holdout and "view" in body.model_fields_set:
        raise InvalidRequest("holdout excludes view", field="view")


def _check_ingest(who: Caller, what: str) -> None:
    if not who.has_scope("ingest"):
        raise Forbidden(f"this key lacks the scope 'ingest', which {what} require")


async def _repeat_response(recordings: Recordings, who: Caller, kept: Mapping[str, Any]) -> Response:
    """Return the first response to a repeated request, its context rendered again."""
    before, after = kept["head"], kept["tail"]
    found = await recordings.context(who.tenant_id, before["line"], UUID(before["call_id"]))
    return Response(ContextResponse(before, found.replayed.request, after).json(), media_type="application/json")


_REQUESTED: Final = frozenset(field.name for field in fields(ContextRequest)) - {"injections"}


async def context_request(body: ContextIn, who: Caller, sid: str, feedback: Feedback) -> ContextRequest:
    """Return the request that a body states, with the settings of the call that it retries. Raises InvalidRequest."""
    injections = tuple(Injection(i.name, check_content(i.content), i.max_tokens) for i in body.injections)
    held_out = None
    if body.holdout and not body.observe:
        held_out = is_held_out(who.tenant_id, session_of(sid), body.holdout)
    stated = {name: value for name, value in body if name in _REQUESTED}
    request = ContextRequest(**stated, injections=injections, held_out=held_out)
    if body.retry_of is None:
        return replace(request, view=OBSERVED_VIEW) if body.observe or held_out else request
    return await feedback.retry_request(who.tenant_id, sid, body.retry_of, request, body.model_fields_set)


FAILED: Final = "the last compaction failed; GET .../compactions has the reason"


def context_response(answer: ContextAnswer, extra: Mapping[str, Json] | None = None) -> ContextResponse:
    """Return the response to a context request, with further fields."""
    return response_of(answer.row_name, answer.assembled, answer.compaction, answer.reason, extra)


def reconciled_response(done: Reconciled, extra: Mapping[str, Json] | None = None) -> ContextResponse:
    """Return the response to a context request with the client's complete messages, with further fields."""
    plan: dict[str, Json] = {
        "appended": [{"index": index, **receipt._asdict()} for index, receipt in done.appended],
        "plan": [asdict(one, dict_factory=_without_none) for one in done.plan.messages],
        "inserted": [asdict(one, dict_factory=_without_none) for one in done.plan.inserted],
    }
    return context_response(done.answer, {**plan, **(extra or {})})


def _without_none(fields: Iterable[tuple[str, Json]]) -> dict[str, Json]:
    return {name: value for name, value in fields if value is not None}


def response_of(
    row_name: str, assembled: Assembled, compaction: str, reason: str | None, extra: Mapping[str, Json] | None = None
) -> ContextResponse:
    """Return the response with an assembled context."""
    inputs, rendered, call = assembled.inputs, assembled.rendered, assembled.call
    gone = sorted((*rendered.evictions, *rendered.unfit), key=lambda row: row.from_seq)
    shown = inputs.budget.provider_tokens
    evicted = [eviction_row(row) | {"tokens_saved": shown(row.tokens_saved)} for row in gone]
    before: dict[str, Json] = {
        "call_id": str(call.call_id),
        "session": session_of(row_name),
        "line": line_of(row_name),
        "view": call.view,
        "head": call.head,
        "epoch": call.epoch,
        "format": call.format,
        "model": call.model,
        "policy": {"name": call.policy[0], "version": call.policy[1]},
    }
    after: dict[str, Json] = {
        **parts_json(call, rendered.plan.state.folds, evicted, rendered.request.prefix_sha256, shown),
        "compaction": _compaction(compaction, rendered.plan.stalled, reason, gone),
        "sha256": rendered.request.sha256.hex(),
        **(extra or {}),
    }
    return ContextResponse(before, rendered.request, after)


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
