"""Lines and forks of sessions: list lines, rewind to an earlier seq, and fork."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Response

from app.core.errors import OutsidePrefix
from app.core.log.segments import line_of, session_of
from app.http import paging
from app.http.fields import Cursor, Limit, Sid
from app.http.idempotency import Idempotent
from app.http.operation import Resource, Who, service
from app.resources.lines.forks import Forked, Forks
from app.resources.lines.service import Lines
from app.resources.sessions.routes import ForkIn, ForkOut, LinePage, RewindIn, RewindOut, parent_of, session_out
from app.services.idempotency import ResponseToStore

router = Resource("sessions")


@router.operation(
    "POST",
    "/v1/sessions/{sid}/fork",
    scope="ingest",
    returns=ForkOut,
    status=201,
    also=(200,),
    problems=("not-found", "conflict", "idempotency-conflict", "too-many-sessions", "session-erased"),
)
async def fork_session(
    sid: Sid,
    body: ForkIn,
    response: Response,
    who: Who,
    forks: Annotated[Forks, Depends(service(Forks))],
    idempotent: Idempotent,
) -> Mapping[str, Any]:
    """Create a session that shares the log of this one up to a seq, to try something; 200 if it exists.

    Events are not copied. The fork has its parent's policy, model and views, and the summaries that end at or before
    that seq; after it the two are independent. A fork in the middle of parallel tool calls has calls without results,
    which its contexts show as pending; `left_out` lists the events that were cut off.
    """
    if not who.may_access(body.id):
        raise OutsidePrefix(f"this key is limited to sessions of {who.session_prefix!r}, including forks")

    def shown(made: Forked) -> Mapping[str, Any]:
        return {**session_out(made.row, who), "left_out": made.left_out}

    async def forked(keep: ResponseToStore[Forked] | None) -> Forked:
        made = await forks.fork(who.tenant_id, sid, body.id, at=body.at, metadata=body.metadata, keep=keep)
        response.status_code = 201 if made.created else 200
        return made

    response.status_code = 200
    out: Mapping[str, Any] = await idempotent(body).run_once(ForkOut, forked, shown)
    return out


Service = Annotated[Lines, Depends(service(Lines))]


@router.operation(
    "GET",
    "/v1/sessions/{sid}/lines",
    scope="read",
    resolves_line=False,
    returns=LinePage,
    problems=("not-found", "invalid-request"),
)
async def list_lines(
    sid: Sid,
    who: Who,
    lines: Service,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """List the lines (branches) of a session, oldest first. The session's id means the current one."""
    after = paging.decode_number(cursor, below=2**31)
    rows, current = await lines.page(who.tenant_id, sid, after or 0, limit + 1)
    page = paging.page(rows, limit, lambda row: row.number)
    return {
        **page,
        "items": [
            {
                "id": line_of(row.external_id),
                "head": row.head,
                "current": line_of(row.external_id) == current,
                "parent": parent_of(row.parent, session_of(sid)) if row.parent and who.may_access(row.parent) else None,
                "at": row.parent_at if row.parent and who.may_access(row.parent) else None,
                "created_at": row.created_at,
            }
            for row in page["items"]
        ],
    }


@router.operation(
    "POST",
    "/v1/sessions/{sid}/rewind",
    scope="ingest",
    resolves_line=False,
    returns=RewindOut,
    problems=("invalid-request", "not-found", "conflict", "idempotency-conflict", "too-many-lines"),
)
async def rewind_session(
    sid: Sid,
    body: RewindIn,
    who: Who,
    lines: Service,
    idempotent: Idempotent,
) -> Mapping[str, Any]:
    """Rewind a session to an earlier seq: from now on its id means a new line that ends there.

    Nothing is destroyed: the previous line stays, under its own id. If the session already ends at that seq, nothing
    changes. A line that ends in the middle of parallel tool calls has calls without results, which its contexts show as
    pending; `left_out` lists the events that were cut off.
    """

    def shown(made: Forked) -> Mapping[str, Any]:
        return {**session_out(made.row, who), "left_out": made.left_out}

    async def rewound(keep: ResponseToStore[Forked] | None) -> Forked:
        return await lines.rewind(who.tenant_id, sid, body.to, keep)

    out: Mapping[str, Any] = await idempotent(body).run_once(RewindOut, rewound, shown)
    return out
