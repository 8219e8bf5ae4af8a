"""Audit: list, explain, compare and search recorded calls, and render them again."""

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Path, Query, Response

from app.core.errors import OutsidePrefix
from app.core.log.segments import ADDRESS_PATTERN
from app.http import paging
from app.http.auth import PrefixAccess
from app.http.fields import RECORDED_VIEW, Cursor, Limit, Moment, Sid
from app.http.operation import Resource, Who
from app.http.past_reads import PastRead, past_read
from app.resources.contexts.recordings import Recordings
from app.wings.audit.answers import call_block, call_item, context_again
from app.wings.audit.schemas.blocks import CallBlockOut, CallBlockPage
from app.wings.audit.schemas.calls import CallPage, ContextAgain, DiffOut, HistoryPage, Manifest
from app.wings.audit.search import CallSearch, Filters
from app.wings.audit.service import Audit

router = Resource("audit")

CallId = Annotated[UUID, Path(description="Id of the recorded call.")]
OtherCallId = Annotated[UUID, Path(description="Id of the recorded call to compare with.")]
BlockIndex = Annotated[int, Path(ge=0, lt=2**31, description="Position of the block in the request, counted from 0.")]
Dispositions = Annotated[
    bool, Query(description="Whether to list the dispositions of all events, which takes longer in a long session.")
]
DeclinedReducers = Annotated[
    bool,
    Query(alias="declined", description="Whether to find the reducers that declined: the call is rendered for it."),
]
TextChars = Annotated[
    int, Query(ge=0, le=100_000, description="Maximum number of characters of each block's text in the response.")
]
Seq = Annotated[int, Path(ge=1, le=2**63 - 1, description="Seq of the event.")]
View = Annotated[
    str | None,
    Query(pattern=RECORDED_VIEW, description="Name of a view: return only its calls. Default: all views."),
]


Render = Annotated[PastRead[Recordings], Depends(past_read(Recordings))]
Calls = Annotated[PastRead[Audit], Depends(past_read(Audit))]
Search = Annotated[PastRead[CallSearch], Depends(past_read(CallSearch))]
Name = Annotated[str | None, Query(min_length=1, max_length=256, description="Name of a model: return only its calls.")]

_PROBLEM_SLUGS = ("not-reproducible",)


@router.operation("GET", "/v1/sessions/{sid}/calls", scope="read", resolves_line=False, returns=CallPage)
async def list_calls(
    sid: Sid, who: Who, audit: Calls, view: View = None, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the recorded calls of a session, newest first. Every context that was returned is recorded as a call.

    For the id of a session these are the calls on all of its lines, for the id of a line only those on that line.
    """
    before = paging.decode_id(cursor)
    calls = await audit(lambda own: own.page(who.tenant_id, sid, view=view, before=before, limit=limit + 1))
    return paging.page([call_item(line, call) for line, call in calls], limit, lambda item: item.call_id)


@router.operation("GET", "/v1/sessions/{sid}/calls/{call_id}", scope="read", returns=Manifest, problems=_PROBLEM_SLUGS)
async def get_call(
    sid: Sid,
    call_id: CallId,
    who: Who,
    audit: Calls,
    dispositions: Dispositions = True,
    declined: DeclinedReducers = True,
) -> Manifest:
    """Get the record of a call: everything its context was made from, and how it showed every event."""
    asked = {"with_dispositions": dispositions, "with_declined": declined}
    return await audit(lambda own: own.explain(who.tenant_id, sid, call_id, **asked))


@router.operation(
    "GET",
    "/v1/sessions/{sid}/calls/{call_id}/context",
    scope="read",
    summary="Render a call again",
    returns=ContextAgain,
    problems=_PROBLEM_SLUGS,
)
async def get_call_context(sid: Sid, call_id: CallId, who: Who, render: Render) -> Response:
    """Render a recorded call again, to the same bytes as when it was made."""
    done = await render(lambda own: own.context(who.tenant_id, sid, call_id))
    return Response(context_again(sid, done), media_type="application/json")


@router.operation(
    "GET",
    "/v1/sessions/{sid}/calls/{call_id}/blocks",
    scope="read",
    returns=CallBlockPage,
    problems=_PROBLEM_SLUGS,
)
async def list_call_blocks(
    sid: Sid, call_id: CallId, who: Who, audit: Calls, text: TextChars = 4096, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the blocks of a call's request as the model saw them, in order, each with its size and the reason."""
    after = paging.decode_number(cursor, below=2**31)
    first = 0 if after is None else after + 1
    found = (await audit(lambda own: own.blocks(who.tenant_id, sid, call_id)))[first : first + limit + 1]
    return paging.page(found, limit, lambda block: block.index, lambda block: call_block(block, text))


@router.operation(
    "GET",
    "/v1/sessions/{sid}/calls/{call_id}/blocks/{index}",
    scope="read",
    returns=CallBlockOut,
    problems=_PROBLEM_SLUGS,
)
async def get_call_block(sid: Sid, call_id: CallId, index: BlockIndex, who: Who, audit: Calls) -> CallBlockOut:
    """Get one block of a call's request, with all of its text."""
    return call_block(await audit(lambda own: own.block(who.tenant_id, sid, call_id, index)))


@router.operation(
    "GET",
    "/v1/sessions/{sid}/calls/{call_id}/diff/{other_id}",
    scope="read",
    summary="Compare two calls",
    returns=DiffOut,
    problems=_PROBLEM_SLUGS,
)
async def diff_calls(sid: Sid, call_id: CallId, other_id: OtherCallId, who: Who, audit: Calls) -> DiffOut:
    """Compare two calls of a session: the events that the second shows differently, the reasons, and the tokens."""
    return await audit(lambda own: own.diff(who.tenant_id, sid, call_id, other_id))


@router.operation(
    "GET", "/v1/sessions/{sid}/events/{seq}/history", scope="read", returns=HistoryPage, problems=_PROBLEM_SLUGS
)
async def get_event_history(
    sid: Sid,
    seq: Seq,
    who: Who,
    audit: Calls,
    view: View = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """List how the context of each call since an event was logged has shown it, oldest first, and why."""
    after = paging.decode_id(cursor)
    found = await audit(lambda own: own.history(who.tenant_id, sid, seq, view=view, after=after, limit=limit + 1))
    return paging.page(found, limit, lambda item: item.call_id)


LeastEvicted = Annotated[
    int,
    Query(
        ge=0,
        le=2**31 - 1,
        description="Minimum number of estimated tokens that a call saved by not sending everything verbatim.",
    ),
]

EvictedSeq = Annotated[
    int | None,
    Query(
        ge=1,
        le=2**63 - 1,
        description="Seq of an event: return only calls that did not show it verbatim. Requires `session`.",
    ),
]


@router.operation(
    "GET", "/v1/audit/calls", scope="audit", access=PrefixAccess.WITHIN, summary="Search calls", returns=CallPage
)
async def audit_calls(
    who: Who,
    search: Search,
    session: Annotated[
        str | None,
        Query(
            pattern=ADDRESS_PATTERN,
            description="Id of a session or line: return only its calls. For a session these are the calls on all of "
            "its lines; with `summary` or `evicted_seq`, those on its current line.",
        ),
    ] = None,
    model: Name = None,
    since: Annotated[Moment | None, Query(description="Earliest time of the calls, inclusive, in ISO 8601.")] = None,
    until: Annotated[Moment | None, Query(description="Latest time of the calls, exclusive, in ISO 8601.")] = None,
    summary: Annotated[
        UUID | None,
        Query(
            description="Id of a summary: return only calls that showed it, in the session it was written for, or in "
            "the fork that `session` names."
        ),
    ] = None,
    evicted_seq: EvictedSeq = None,
    overflow: Annotated[
        bool | None,
        Query(
            description="Whether the provider refused the call as too long: return only such calls (`true`), or only "
            "others (`false`)."
        ),
    ] = None,
    min_evicted_tokens: LeastEvicted = 0,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """Search recorded calls across sessions, newest first; all conditions must hold.

    A page may have fewer than `limit` calls although more follow: check `next_cursor`. With a key that is limited to a
    session prefix, `session` is required.
    """
    before = paging.decode_date_and_id(cursor)
    if session is None and who.session_prefix:
        raise OutsidePrefix(f"this key is limited to sessions of {who.session_prefix!r}: name one of them")
    if session is not None and not who.may_access(session):
        return paging.page_to((), None)
    asked = Filters(
        session=session,
        model=model,
        since=since,
        until=until,
        summary=summary,
        evicted_seq=evicted_seq,
        overflow=overflow,
        min_evicted_tokens=min_evicted_tokens,
        before=before,
    )
    found, after = await search(lambda own: own.calls(who.tenant_id, asked, limit))
    return paging.page_to((call_item(name, call) for name, call in found), after)
