"""Contexts: what to send to the model next."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.auth import Caller, caller
from app.api.documents import problems
from app.api.routes.sessions import Sid
from app.api.schemas import ContextIn, ContextOut, FormatName
from app.services.assembly import Assembly, ContextRequest, Injection

router = APIRouter(tags=["context"])

_PROBLEMS = problems(
    "not-found", "invalid-request", "invalid-policy", "context-infeasible", "injection-over-reserve", "conflict"
)


def _assembly(request: Request) -> Assembly:
    found: Assembly = request.state.services.assembly
    return found


Service = Annotated[Assembly, Depends(_assembly)]
Reader = Annotated[Caller, Depends(caller("read"))]


@router.get("/v1/sessions/{sid}/context", operation_id="get_context", response_model=ContextOut, responses=_PROBLEMS)
async def get_context(
    sid: Sid,
    who: Reader,
    assembly: Service,
    view: Annotated[str, Query(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "main",
    format: FormatName = "openai",
    model: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
    max_tokens: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    at: Annotated[int | None, Query(ge=1)] = None,
    wait_ms: Annotated[int | None, Query(ge=0, le=600_000)] = None,
) -> Response:
    """The next context: within its target, valid for its provider, recorded before it leaves."""
    return await _context(
        assembly, who, sid, ContextRequest(view=view, format=format, model=model, max_tokens=max_tokens, at=at)
    )


@router.post("/v1/sessions/{sid}/context", operation_id="post_context", response_model=ContextOut, responses=_PROBLEMS)
async def post_context(sid: Sid, body: ContextIn, who: Reader, assembly: Service) -> Response:
    """The same, with injections, a policy for this view, or the time of a recorded call."""
    return await _context(
        assembly,
        who,
        sid,
        ContextRequest(
            view=body.view,
            format=body.format,
            model=body.model,
            max_tokens=body.max_tokens,
            at=body.at,
            policy=body.policy,
            force=body.force,
            now=_aware(body.now),
            injections=tuple(Injection(i.name, i.content, i.max_tokens) for i in body.injections),
        ),
    )


async def _context(assembly: Assembly, who: Caller, sid: str, asked: ContextRequest) -> Response:
    text = await assembly.context(who.tenant_id, sid, asked)
    return Response(text, media_type="application/json")


def _aware(moment: datetime | None) -> datetime | None:
    if moment is None:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
