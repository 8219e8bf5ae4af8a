"""Visibility: hide, show, pin and unpin events. The log keeps all of them."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from fastapi import Depends

from app.api.operation import Resource, Who, service
from app.api.schemas.common import Sid
from app.api.schemas.visibility import HideIn, TargetIn, VisibilityIn, VisibilityOut
from app.core.recall.visibility import Hide, Target, VisibilityRequest
from app.services.visibility import Visibility

router = Resource("visibility")


@router.operation(
    "PATCH",
    "/v1/sessions/{sid}/visibility",
    scope="ingest",
    summary="Hide, show and pin events",
    returns=VisibilityOut,
    problems=("not-found", "invalid-policy", "context-infeasible", "conflict"),
)
async def patch_visibility(
    sid: Sid,
    body: VisibilityIn,
    who: Who,
    visibility: Annotated[Visibility, Depends(service(Visibility))],
) -> Mapping[str, Any]:
    """Hide, show, pin and unpin events for all future contexts. Each item is accepted or refused separately."""
    asked = VisibilityRequest(
        hide=tuple(Hide(Target(one), None) if isinstance(one, int) else _hide(one) for one in body.hide),
        show=_targets(body.show),
        pin=_targets(body.pin),
        unpin=_targets(body.unpin),
        force=body.force,
    )
    done = await visibility.decide(who.tenant_id, sid, body.view, asked)
    outcome = done.outcome
    return {
        "session": sid,
        "head": done.head,
        "decisions": done.decisions,
        "hidden": outcome.hidden,
        "shown": outcome.shown,
        "pinned": outcome.pinned,
        "unpinned": outcome.unpinned,
        "refused": [
            {
                "action": one.action,
                "seq": one.target.seq,
                "path": one.target.path,
                "reason": one.reason,
                "detail": one.detail,
            }
            for one in outcome.refused
        ],
    }


def _hide(one: HideIn) -> Hide:
    return Hide(Target(one.seq, one.path), one.replacement)


def _targets(given: Iterable[int | TargetIn]) -> tuple[Target, ...]:
    return tuple(Target(one) if isinstance(one, int) else Target(one.seq, one.path) for one in given)
