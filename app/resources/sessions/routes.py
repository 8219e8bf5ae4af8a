"""Sessions: create, read, list, erase."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Body, Depends, Query, Response
from pydantic import BaseModel, Field

from app.core.errors import InvalidRequest
from app.core.log.segments import ADDRESS_PATTERN, line_of, session_of
from app.core.tokens.models import UNKNOWN, profile
from app.http import fields, paging
from app.http.auth import PrefixAccess
from app.http.fields import Cursor, Limit, Moment, Sid, StrictRequest, ViewParameter, answer_of
from app.http.openapi import examples
from app.http.operation import Resource, Who, service
from app.resources.policies.routes import PolicyGiven, PolicyRef
from app.resources.sessions.service import Sessions, check_metadata
from app.store.session_filter import SessionFilter
from app.store.sessions import SessionRow
from app.tenants import Caller


class SessionIn(StrictRequest):
    """Settings of a session. Those omitted keep their current value."""

    model_config = examples(
        lambda: SessionIn(model="gpt-4o", policy={"retention": {"keep_last": 5}}, metadata={"user": "ann"})
    )

    unchecked_text = frozenset({"policy"})

    policy: PolicyGiven = None
    model: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Name of the model for views without one of their own. If set before the first event, it also "
        "determines the estimator.",
    )
    metadata: dict[str, Any] | None = Field(
        None, description="Client's own data about the session, at most 65,536 bytes. It replaces the stored data."
    )
    outside_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="Tokens that the client sends in addition to each request, such as tools or a system prompt of its "
        "own, as the provider counts them. If never set, the number is learned from reported usage.",
    )


class SessionTokens(BaseModel):
    """Sizes of a session, in tokens by the estimator."""

    log: int = Field(description="Size of all events as logged.")
    context: int = Field(
        description="Estimated current size of the `main` view's context; before its first context, the size of the "
        "log."
    )


class ParentOut(BaseModel):
    """Session that another one was forked from."""

    id: str = Field(description="Id of the session or line whose log this one begins with.")
    at: int = Field(description="Seq of the last event that both share.")


class SessionOut(BaseModel):
    """A session: the log of one agent, and its settings."""

    id: fields.SessionName
    line: fields.LineName
    head: fields.Head
    epoch: fields.MainEpoch
    turns: int = Field(description="Number of turns that have begun.")
    policy: PolicyRef = Field(description="Version of the policy for views without one of their own.")
    model: str | None = Field(
        description="Name of the model for views without one of their own; null if it was never set."
    )
    window_assumed: bool = Field(
        description="Whether `model` is not set or its window is not known: contexts then assume 128,000 tokens unless "
        "`max_tokens` or the policy's `window_tokens` is set."
    )
    estimator: str = Field(
        description="Name of the estimator that counts the events, such as `tiktoken:o200k_base`; fixed by the first "
        "event."
    )
    metadata: dict[str, Any] = Field(description="Client's own data about the session.")
    tokens: SessionTokens = Field(description="Sizes of the log and of the current context.")
    outside_tokens: int | None = Field(
        description="Tokens that the client sends in addition to each request; null if it was never set."
    )
    created_at: fields.CreatedAt
    updated_at: datetime = Field(description="Time of the last append, or change of settings or layers.")
    parent: ParentOut | None = Field(
        None,
        description="Session that this one is a fork of; null if it is not a fork or the key cannot access the parent.",
    )


SessionPage = paging.page_of(SessionOut, "A page of sessions.", "Sessions, newest first.")


class EpochOut(BaseModel):
    """An epoch: a stored state of a view. Within it, contexts only grow at the end, so that caches stay valid."""

    epoch: fields.EpochNumber
    head: fields.EpochHead
    cause: fields.EpochCause
    tokens_before: fields.EpochTokensBefore
    tokens_after: fields.EpochTokensAfter
    created_at: fields.CreatedAt


EpochPage = paging.page_of(EpochOut, "A page of a view's epochs.", "Epochs by number.")

router = Resource("sessions")

Service = Annotated[Sessions, Depends(service(Sessions))]


@router.operation(
    "PUT",
    "/v1/sessions/{sid}",
    scope="ingest",
    summary="Create or change a session",
    also=(201,),
    problems=("invalid-policy", "context-infeasible", "too-many-sessions", "session-erased"),
)
async def put_session(
    sid: Sid,
    body: Annotated[SessionIn, Body(default_factory=SessionIn)],
    response: Response,
    who: Who,
    sessions: Service,
) -> SessionOut:
    """Create a session (201), or change the settings of an existing one (200).

    A new policy takes effect at the next context of `main` and of every view without a policy of its own.
    """
    row, created = await sessions.put(who.tenant_id, sid, **vars(body))
    response.status_code = 201 if created else 200
    return session_out(row, who)


@router.operation("GET", "/v1/sessions/{sid}", scope="read")
async def get_session(sid: Sid, who: Who, sessions: Service) -> SessionOut:
    """Get a session: its settings, the end of its log and its size."""
    return session_out(await sessions.get(who.tenant_id, sid), who)


@router.operation("GET", "/v1/sessions", scope="read", access=PrefixAccess.WITHIN, returns=SessionPage)
async def list_sessions(
    who: Who,
    sessions: Service,
    limit: Limit = 50,
    cursor: Cursor = None,
    parent: Annotated[
        str | None,
        Query(pattern=ADDRESS_PATTERN, description="Id of a session, or of one of its lines: return only its forks."),
    ] = None,
    model: Annotated[
        str | None, Query(min_length=1, max_length=256, description="Name of a model: return only its sessions.")
    ] = None,
    since: Annotated[
        Moment | None, Query(description="Earliest time of the sessions' creation, inclusive, in ISO 8601.")
    ] = None,
    until: Annotated[
        Moment | None, Query(description="Latest time of the sessions' creation, exclusive, in ISO 8601.")
    ] = None,
    metadata: Annotated[
        str | None,
        Query(
            max_length=4096,
            description='JSON object, such as `{"user": "ann"}`: return only sessions whose `metadata` has all of its '
            "fields. Nested objects are compared in the same way, and lists must contain all of its items, so "
            '`{"user": {}}` finds every session whose user is an object. The conditions of an erasure are stricter.',
        ),
    ] = None,
) -> Mapping[str, Any]:
    """List the sessions that the key can access, newest first; all conditions must hold.

    With `model` or `metadata` a page may have fewer than `limit` sessions although more follow: check `next_cursor`.
    """
    after = paging.decode_date_and_id(cursor)
    wanted = {} if metadata is None else _metadata(metadata)
    if parent is not None and not who.may_access(parent):
        return paging.page_to((), None)
    filters = SessionFilter(parent, who.session_prefix, since, until, model, wanted)
    rows, resume_after = await sessions.page(who.tenant_id, limit + 1, after, filters)
    page = paging.page(rows, limit, lambda row: (row.created_at, row.session_id), lambda row: session_out(row, who))
    return page if resume_after is None else paging.page_to(page["items"], resume_after)


@router.operation(
    "DELETE", "/v1/sessions/{sid}", scope="admin", resolves_line=False, status=204, problems=("conflict",)
)
async def delete_session(
    sid: Sid,
    who: Who,
    sessions: Service,
    forks: Annotated[
        Literal["keep", "erase"],
        Query(
            description="Treatment of the session's forks, which share its events: `erase` erases them as well; with "
            "`keep`, if there are any, nothing is erased and the error is `conflict`."
        ),
    ] = "keep",
) -> None:
    """Erase a session with everything derived from it: events, summaries, recorded calls. This cannot be undone."""
    await sessions.erase(who.tenant_id, sid, forks=forks == "erase", prefix=who.session_prefix)


@router.operation("GET", "/v1/sessions/{sid}/epochs", scope="read", returns=EpochPage)
async def list_epochs(
    sid: Sid, who: Who, sessions: Service, view: ViewParameter = "main", limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the epochs of a view in order, each with its cause: the times at which its contexts were rewritten."""
    after = paging.decode_number(cursor, below=2**31)
    rows = await sessions.epochs(who.tenant_id, sid, view, after or 0, limit + 1)
    return paging.page(rows, limit, lambda row: row.epoch)


def _metadata(text: str) -> Mapping[str, Any]:
    try:
        wanted = json.loads(text)
    except (ValueError, RecursionError):
        wanted = None
    if not isinstance(wanted, dict):
        raise InvalidRequest('metadata must be a JSON object, such as {"user": "ann"}', field="metadata")
    check_metadata(wanted)
    return wanted


def session_out(row: SessionRow, who: Caller) -> SessionOut:
    """Return the response for a session, without a parent that the caller's key cannot access."""
    parent = row.parent if row.parent is not None and who.may_access(row.parent[0]) else None
    session = session_of(row.external_id)
    return answer_of(
        SessionOut,
        row,
        row.state,
        id=session,
        line=line_of(row.external_id),
        window_assumed=profile(row.model) is UNKNOWN,
        tokens=SessionTokens(log=row.state.tokens, context=row.context_tokens),
        parent=None if parent is None else ParentOut(id=parent_of(parent[0], session), at=parent[1]),
    )


def parent_of(row_name: str, session: str) -> str:
    """Return the public id of the parent of a session's line: a line of the same session, or another session."""
    return line_of(row_name) if row_name == session else row_name
