"""Forks: create a session that shares the log of another up to a seq."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Request, Response

from app.api.idempotency import Idempotency, Key
from app.api.operation import Resource, Who
from app.api.routes.sessions import Sid, session_out
from app.api.schemas.forks import ForkIn, ForkOut
from app.api.service import service
from app.core.errors import OutsidePrefix
from app.services.forks import Forked, Forks
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
    request: Request,
    sid: Sid,
    body: ForkIn,
    response: Response,
    who: Who,
    forks: Annotated[Forks, Depends(service(Forks))],
    key: Key = None,
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
    out: Mapping[str, Any] = await Idempotency(request, who, sid, key, body).run_once(ForkOut, forked, shown)
    return out
