"""Contexts: get the request of the next model call."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Body, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.core.assembly.inputs import ContextRequest, Injection
from app.core.errors import InvalidRequest
from app.http.auth import session_in_path
from app.http.errors import Forbidden
from app.http.fields import QUERY, Sid
from app.http.idempotency import Idempotency, Idempotent
from app.http.openapi import parameters_of
from app.http.operation import Resource, Who, service
from app.resources.contexts.json import ContextBody, context_body, reconciled_body
from app.resources.contexts.recordings import Recordings
from app.resources.contexts.schemas import ContextIn, ContextOut, ContextQuery
from app.resources.contexts.service import Assembly, ContextAnswer
from app.resources.feedback.service import Feedback
from app.resources.layers.service import check_content
from app.resources.lines.service import Lines
from app.resources.reconcile.messages import ClientList
from app.resources.reconcile.outcome import Reconciled
from app.resources.reconcile.service import Reconcile
from app.services.tenants import Caller
from app.store.answers import AlreadyAnswered

router = Resource("context")

PROBLEM_SLUGS: Final = (
    "not-found",
    "invalid-policy",
    "context-infeasible",
    "nothing-to-send",
    "injection-over-reserve",
    "conflict",
)


Service = Annotated[Assembly, Depends(service(Assembly))]


# FastAPI's parsing of a dozen parameters takes as long as planning a context, so this hot route parses them itself.
@router.operation(
    "GET",
    "/v1/sessions/{sid}/context",
    scope="read",
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
    sid = session_in_path(request)
    try:
        query = ContextQuery.model_validate(dict(request.query_params), context=QUERY)
    except ValidationError as error:
        found = [{**one, "loc": ("query", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(found) from None
    assembly: Assembly = request.state.services.assembly
    answer = await assembly.context(who.tenant_id, sid, ContextRequest(**vars(query)))
    return Response(context_body(answer).json(), media_type="application/json")


@router.operation(
    "POST",
    "/v1/sessions/{sid}/context",
    scope="read",
    resolves_line=False,
    summary="Get the next context, with options in a body",
    returns=ContextOut,
    problems=(
        *PROBLEM_SLUGS,
        "invalid-message",
        "invalid-event",
        "unknown-call",
        "duplicate-call",
        "idempotency-conflict",
        "not-reproducible",
        "too-many-sessions",
        "session-erased",
        "too-many-lines",
        "too-many-events",
    ),
)
async def post_context(
    request: Request,
    sid: Sid,
    body: Annotated[ContextIn, Body(default_factory=ContextIn)],
    who: Who,
    assembly: Service,
    feedback: Annotated[Feedback, Depends(service(Feedback))],
    reconcile: Annotated[Reconcile, Depends(service(Reconcile))],
    lines: Annotated[Lines, Depends(service(Lines))],
    idempotent: Idempotent,
) -> Response:
    """Get the context of the next model call, with options that need a body.

    These are injected content, another policy for the view, the time of a replayed call, and the call to retry. With
    `messages`, the client's complete conversation, new messages are first appended to the line of the session that the
    conversation continues: one request per call instead of an append and a context. The append stays even if no context
    can be made.
    """
    once = idempotent(body)
    recordings: Recordings = request.state.services.recordings
    if (kept := await once.stored_response()) is not None:
        return await _again(recordings, who, kept)
    line = sid if body.retry_of is None else await lines.of_call(who.tenant_id, sid, body.retry_of)
    asked = await context_request(body, who, line, feedback)
    try:
        if body.messages is None:
            check_alone(body)
            made = context_body(await assembly.context(who.tenant_id, line, asked, keep=once.response_to_store(_kept)))
        else:
            made = await _reconciled(reconcile, who, sid, body, asked, once)
    except AlreadyAnswered:
        return await _again(recordings, who, await once.concurrent_response())
    return Response(made.json(), media_type="application/json")


async def _kept(answer: ContextAnswer) -> Mapping[str, Any]:
    return context_body(answer).stored()


async def _kept_reconciled(done: Reconciled) -> Mapping[str, Any]:
    return reconciled_body(done).stored()


def check_alone(body: ContextIn) -> None:
    """Raise InvalidRequest for fields that require messages."""
    for field in ("system", "tools"):
        if body.messages is None and getattr(body, field) is not None:
            raise InvalidRequest(f"{field} requires messages", field=field)


async def _again(recordings: Recordings, who: Caller, kept: Mapping[str, Any]) -> Response:
    """Return the first response to a repeated request, its context rendered again."""
    head, tail = kept["head"], kept["tail"]
    found = await recordings.context(who.tenant_id, head["line"], UUID(head["call_id"]))
    return Response(ContextBody(head, found.replayed.request, tail).json(), media_type="application/json")


async def _reconciled(
    reconcile: Reconcile, who: Caller, sid: str, body: ContextIn, asked: ContextRequest, once: Idempotency
) -> ContextBody:
    if not who.has_scope("ingest"):
        raise Forbidden("this key lacks the scope 'ingest', which messages require")
    none = body.system is not None and not body.system
    sent = ClientList(asked.format, body.messages or [], body.system, body.tools, all_prompts=none)
    given = await reconcile.read(who.tenant_id, sid, sent)
    done = await reconcile.context(who.tenant_id, sid, given, asked, once.response_to_store(_kept_reconciled))
    return reconciled_body(done)


_REQUESTED: Final = frozenset(field.name for field in fields(ContextRequest))


async def context_request(body: ContextIn, who: Caller, sid: str, feedback: Feedback) -> ContextRequest:
    """Return the request that a body states, with the settings of the call that it retries. Raises InvalidRequest."""
    injections = tuple(Injection(i.name, check_content(i.content), i.max_tokens) for i in body.injections)
    asked = ContextRequest(**{name: value for name, value in body if name in _REQUESTED} | {"injections": injections})
    if body.retry_of is None:
        return asked
    return await feedback.retry_request(who.tenant_id, sid, body.retry_of, asked, body.model_fields_set)
