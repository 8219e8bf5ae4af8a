"""Audit: list, explain, compare and search recorded calls, and render them again."""

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Path, Query, Response
from pydantic import BaseModel, Field

from app.core.errors import OutsidePrefix
from app.core.log.segments import ADDRESS_PATTERN
from app.http import paging
from app.http.auth import PrefixAccess
from app.http.fields import (
    Cursor,
    Id,
    Limit,
    Moment,
    ReasonIfAny,
    RecordedCall,
    ReducerIfAny,
    Sid,
    ViewIfAny,
    ViewParameter,
    answer_of,
)
from app.http.operation import PastService, Resource, Who, past_service, service
from app.resources.contexts.recordings import Recordings
from app.wings.audit.call_blocks import CallBlock, Protection, Source, Wording
from app.wings.audit.schemas import CallPage, ContextAgain, Manifest, NextEvictionsOut
from app.wings.audit.search import CallSearch, Filters
from app.wings.audit.service import Audit, call_item, context_again


class CallBlockOut(BaseModel):
    """A block of a recorded call's request, as the model saw it."""

    index: int = Field(description="Position of the block in the request, counted from 0.")
    from_seq: int = Field(description="Seq of the first event that it shows, or in whose place it is.")
    seq: int = Field(
        description="Seq of the event that it shows; for several events, that of the last. Content after the "
        "conversation has that of the last event before it."
    )
    kind: str = Field(
        description="Kind of block: `tools`, `system`, `user`, `assistant`, `call`, `result` or `note` (a note of the "
        "agent, or a text of the server)."
    )
    source: Source = Field(description="Part of the context that it counts to, as in `TokensOut.by_source`.")
    mark: Wording = Field(
        description="Form of the content: whole (`verbatim`), as one line in place of a result (`stub`), with its "
        "beginning and end only (`shortened`), as another text (`replaced`), without parts that the request's format "
        "cannot express (`converted`), as a marker since it was erased (`erased`). Or a text of the server: summaries "
        "(`summary`), the list of dropped events (`note`), a line in place of a result that is still missing "
        "(`pending`), a layer (`layer`), the notice that content was pruned (`notice`). Or content that was injected "
        "into this call (`injected`)."
    )
    name: str | None = Field(description="Kind of a layer, or name of injected content; null for other blocks.")
    reducer: ReducerIfAny
    reason: ReasonIfAny
    summaries: list[Id] = Field(description="Ids of the summaries that it shows, in the order of the log.")
    tool: str | None = Field(description="Name of the tool; null for blocks other than tool calls and their results.")
    call_id: str | None = Field(
        description="Id of the tool call; null for blocks other than tool calls and their results."
    )
    protected_by: Protection | None = Field(
        description="Reason for which a block stays whole: it is a part of the prefix (`prefix`), pinned (`pinned`), "
        "the message that the running turn answers (`current_request`), a call without a result (`open_call`), a "
        "message (`message`: these go only with whole turns or under a summary), of a tool in `never_evict`, was shown "
        "again on request (`shown_again`), is among the newest results (`newest`) or too small (`below_minimum`), is a "
        "dense list of names (`listing`), arguments that the policy keeps (`arguments_stay`), the newest content of a "
        "file (`working_set`), or new in this call (`unsent`). Null if it may be evicted, is not whole, or `declined` "
        "of the call is null."
    )
    chars: int = Field(description="Length of its text, in characters.")
    tokens: int = Field(
        description="Estimated size, in the model's tokens. The blocks of a source add up to its figure in "
        "`tokens.by_source` of the call, but for the few tokens of `ephemeral` that belong to no block. Content after "
        "the conversation shares its figure by length, since a record has no figures of single blocks. If events were "
        "erased since, all blocks are counted as shown now."
    )
    breakpoint: str | None = Field(
        description="Kind of the cache breakpoint after the block, as in `BreakpointOut.kind`; null if there is none."
    )
    text: str = Field(
        description="Text of the block, cut to the number of characters asked for: of tool definitions and of a call's "
        "arguments their JSON. Parts other than text are named in brackets, such as `[image]`. An empty text is sent "
        "as the format requires, such as `(no output)`."
    )
    cut: bool = Field(description="Whether `text` is only the beginning.")


CallBlockPage = paging.page_of(
    CallBlockOut, "A page of the blocks of a recorded call's request.", "Blocks in the order of the request."
)


router = Resource("audit", scope="read")

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


Render = Annotated[PastService[Recordings], Depends(past_service(Recordings))]
Calls = Annotated[PastService[Audit], Depends(past_service(Audit))]
Search = Annotated[PastService[CallSearch], Depends(past_service(CallSearch))]
Name = Annotated[str | None, Query(min_length=1, max_length=256, description="Name of a model: return only its calls.")]

_PROBLEM_SLUGS = ("not-reproducible",)


@router.operation("GET", "/v1/sessions/{sid}/calls", resolves_line=False, returns=CallPage)
async def list_calls(
    sid: Sid, who: Who, audit: Calls, view: ViewIfAny = None, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the recorded calls of a session, newest first. Every context that was returned is recorded as a call.

    For the id of a session these are the calls on all of its lines, for the id of a line only those on that line.
    """
    before = paging.decode_id(cursor)
    calls = await audit(lambda own: own.page(who.tenant_id, sid, view=view, before=before, limit=limit + 1))
    return paging.page([call_item(line, call) for line, call in calls], limit, lambda item: item.call_id)


@router.operation("GET", "/v1/sessions/{sid}/calls/{call_id}", problems=_PROBLEM_SLUGS)
async def get_call(
    sid: Sid,
    call_id: RecordedCall,
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
    summary="Render a call again",
    returns=ContextAgain,
    problems=_PROBLEM_SLUGS,
)
async def get_call_context(sid: Sid, call_id: RecordedCall, who: Who, render: Render) -> Response:
    """Render a recorded call again, to the same bytes as when it was made."""
    done = await render(lambda own: own.context(who.tenant_id, sid, call_id))
    return Response(context_again(sid, done), media_type="application/json")


@router.operation("GET", "/v1/sessions/{sid}/calls/{call_id}/blocks", returns=CallBlockPage, problems=_PROBLEM_SLUGS)
async def list_call_blocks(
    sid: Sid,
    call_id: RecordedCall,
    who: Who,
    audit: Calls,
    text: TextChars = 4096,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """List the blocks of a call's request as the model saw them, in order, each with its size and the reason."""
    after = paging.decode_number(cursor, below=2**31)
    first = 0 if after is None else after + 1
    found = (await audit(lambda own: own.blocks(who.tenant_id, sid, call_id)))[first : first + limit + 1]
    return paging.page(found, limit, lambda block: block.index, lambda block: _block(block, text))


@router.operation("GET", "/v1/sessions/{sid}/calls/{call_id}/blocks/{index}", problems=_PROBLEM_SLUGS)
async def get_call_block(sid: Sid, call_id: RecordedCall, index: BlockIndex, who: Who, audit: Calls) -> CallBlockOut:
    """Get one block of a call's request, with all of its text."""
    return _block(await audit(lambda own: own.block(who.tenant_id, sid, call_id, index)))


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


def _block(block: CallBlock, most: int | None = None) -> CallBlockOut:
    """Return a block of a call's request, with at most `most` characters of its text."""
    text = block.text
    shown = text if most is None else text[:most]
    return answer_of(CallBlockOut, block, chars=len(text), text=shown, cut=len(shown) < len(text))


FirstEvictions = Annotated[int, Query(ge=0, le=1000, description="Maximum number of evictions in the response.")]


previews = Resource("context", scope="read")


@previews.operation("GET", "/v1/sessions/{sid}/next-evictions", problems=("context-infeasible", "conflict"))
async def get_next_evictions(
    sid: Sid,
    who: Who,
    audit: Annotated[Audit, Depends(service(Audit))],
    view: ViewParameter = "main",
    limit: FirstEvictions = 20,
) -> NextEvictionsOut:
    """Get the next events that a view would leave out, and the reasons why it does not leave them out yet.

    They are those of a context just above its threshold, with the view's own policy, model and window.
    """
    return await audit.next_evictions(who.tenant_id, sid, view, limit)
