"""Lines and forks of sessions: list lines, rewind to an earlier seq, and fork."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Depends, Response
from pydantic import BaseModel, Field

from app.core.errors import OutsidePrefix
from app.core.log.segments import line_of, session_of
from app.http import paging
from app.http.fields import CreatedAt, Cursor, Head, Limit, Seq, SessionId, Sid, StrictRequest, answer_of
from app.http.openapi import examples
from app.http.operation import Idempotent, Resource, Who, service
from app.resources.lines.service import Forked, Forks, Lines
from app.resources.sessions.routes import SessionOut, parent_of, session_out
from app.store.answers import ResponseToStore
from app.store.lines import LineRow
from app.tenants import Caller


class LineOut(BaseModel):
    """A line (branch) of a session. The session's id means one of its lines at a time, the current line."""

    id: str = Field(description="Id of the line. Used in place of a session's id, it always means this line.")
    head: Head
    current: bool = Field(description="Whether the session's id means this line now.")
    parent: str | None = Field(description="Id of the line or session whose log it begins with; null if it has none.")
    at: int | None = Field(description="Seq of the last event that it shares with `parent`.")
    created_at: CreatedAt


LinePage = paging.page_of(LineOut, "A page of a session's lines.", "Lines, oldest first.")


class RewindIn(StrictRequest):
    """Request to rewind a session."""

    model_config = examples(lambda: RewindIn(to=12))

    to: int = Field(ge=0, lt=2**63, description="Seq of the last event to keep; 0 for an empty line.")


class ForkIn(StrictRequest):
    """Request for a new session that begins with the log of another, up to a seq."""

    model_config = examples(lambda: ForkIn(id="demo-try-2", at=120))

    id: SessionId = Field(description="Id of the new session, chosen by the client.")
    at: int | None = Field(
        None, ge=0, lt=2**63, description="Seq of the last event that both share; 0 shares nothing. Default: the head."
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Client's own data about the new session; the parent's is not copied."
    )


class LeftOutOut(BaseModel):
    """A tool call or result that was cut off by a fork or rewind."""

    seq: Seq
    type: Literal["tool.call", "tool.result"] = Field(description="Type of the event.")
    call_id: str = Field(description="Id of the tool call.")
    tool: str | None = Field(description="Name of the tool; null if it is not known.")


class ForkOut(SessionOut):
    """A fork, and the events of its last round that were cut off."""

    left_out: list[LeftOutOut] = Field(
        description="Events of the parent after `parent.at` that belong to the last round of the fork: results of its "
        "tool calls, and further calls of the same response. Append the results to the fork, or fork after them; until "
        "then its contexts show the calls as pending. Empty for a fork between rounds."
    )


class RewindOut(SessionOut):
    """A rewound session, and the events of its last round that were cut off."""

    left_out: list[LeftOutOut] = Field(
        description="Events of the previous line after `to` that belong to the last round of the new line: results of "
        "its tool calls, and further calls of the same response. Append the results, or rewind to a seq between "
        "rounds; until then contexts show the calls as pending. Empty if the line ends between rounds."
    )


router = Resource("sessions")


@router.operation(
    "POST",
    "/v1/sessions/{sid}/fork",
    scope="ingest",
    returns=ForkOut,
    status=201,
    also=(200,),
    problems=("conflict", "idempotency-conflict", "too-many-sessions", "session-erased"),
)
async def fork_session(
    sid: Sid,
    body: ForkIn,
    response: Response,
    who: Who,
    forks: Annotated[Forks, Depends(service(Forks))],
    idempotent: Idempotent,
) -> Any:
    """Create a session that shares the log of this one up to a seq, to try something; 200 if it exists.

    Events are not copied. The fork has its parent's policy, model and views, and the summaries that end at or before
    that seq; after it the two are independent. A fork in the middle of parallel tool calls has calls without results,
    which its contexts show as pending; `left_out` lists the events that were cut off.
    """
    if not who.may_access(body.id):
        raise OutsidePrefix(f"this key is limited to sessions of {who.session_prefix!r}, including forks")

    def shown(made: Forked) -> ForkOut:
        return answer_of(ForkOut, session_out(made.row, who), made)

    async def forked(keep: ResponseToStore[Forked] | None) -> Forked:
        made = await forks.fork(who.tenant_id, sid, body.id, at=body.at, metadata=body.metadata, keep=keep)
        response.status_code = 201 if made.created else 200
        return made

    return await idempotent(body).run_once(ForkOut, forked, shown)


Service = Annotated[Lines, Depends(service(Lines))]


@router.operation("GET", "/v1/sessions/{sid}/lines", scope="read", resolves_line=False, returns=LinePage)
async def list_lines(
    sid: Sid, who: Who, lines: Service, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the lines (branches) of a session, oldest first. The session's id means the current one."""
    after = paging.decode_number(cursor, below=2**31)
    rows, current = await lines.page(who.tenant_id, sid, after or 0, limit + 1)
    return paging.page(rows, limit, lambda row: row.number, lambda row: _line_out(row, session_of(sid), current, who))


@router.operation(
    "POST",
    "/v1/sessions/{sid}/rewind",
    scope="ingest",
    resolves_line=False,
    returns=RewindOut,
    problems=("conflict", "idempotency-conflict", "too-many-lines"),
)
async def rewind_session(sid: Sid, body: RewindIn, who: Who, lines: Service, idempotent: Idempotent) -> Any:
    """Rewind a session to an earlier seq: from now on its id means a new line that ends there.

    Nothing is destroyed: the previous line stays, under its own id. If the session already ends at that seq, nothing
    changes. A line that ends in the middle of parallel tool calls has calls without results, which its contexts show as
    pending; `left_out` lists the events that were cut off.
    """

    def shown(made: Forked) -> RewindOut:
        return answer_of(RewindOut, session_out(made.row, who), made)

    async def rewound(keep: ResponseToStore[Forked] | None) -> Forked:
        return await lines.rewind(who.tenant_id, sid, body.to, keep)

    return await idempotent(body).run_once(RewindOut, rewound, shown)


def _line_out(row: LineRow, session: str, current: str, who: Caller) -> LineOut:
    parent = row.parent if row.parent and who.may_access(row.parent) else None
    line = line_of(row.external_id)
    return answer_of(
        LineOut,
        row,
        id=line,
        current=line == current,
        parent=None if parent is None else parent_of(parent, session),
        at=None if parent is None else row.parent_at,
    )
