"""Previews: the next context with any settings, planned and rendered but not recorded."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import Body, Depends, Query, Response
from pydantic import Field

from app.core.errors import InvalidRequest
from app.http.fields import Sid
from app.http.operation import Resource, Who, service
from app.resources.calls.schemas import CallRef, DiffOut
from app.resources.contexts.json import preview_json
from app.resources.contexts.routes import PROBLEM_SLUGS, check_alone, context_request
from app.resources.contexts.schemas import ContextIn, ContextOut
from app.resources.feedback.service import Feedback
from app.resources.previews.service import Preview

router = Resource("context")


class PreviewRef(CallRef):
    """A preview, and the settings of its context."""

    call_id: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed
    created_at: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed


class PreviewDiff(DiffOut):
    """Difference between a recorded call (`a`) and a preview (`b`)."""

    b: PreviewRef = Field(description="The preview.")


class PreviewOut(ContextOut):
    """A context as the next call would get it. Nothing was recorded or changed."""

    call_id: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed
    preview: Literal[True] = Field(description="Always true: this is a preview.")
    cause: str | None = Field(
        description="Cause of the new epoch that it would open, as in `EpochOut.cause`; null if the current epoch "
        "would stay."
    )
    diff: PreviewDiff | None = Field(
        None, description="Difference from the recorded call named by `diff_with`; absent without it."
    )


@router.operation(
    "POST",
    "/v1/sessions/{sid}/context:preview",
    scope="read",
    summary="Preview the next context",
    returns=PreviewOut,
    problems=(*PROBLEM_SLUGS, "not-reproducible"),
)
async def preview_context(
    sid: Sid,
    body: Annotated[ContextIn, Body(default_factory=ContextIn)],
    who: Who,
    preview: Annotated[Preview, Depends(service(Preview))],
    feedback: Annotated[Feedback, Depends(service(Feedback))],
    diff_with: Annotated[UUID | None, Query(description="Id of a recorded call to compare the preview with.")] = None,
) -> Response:
    """Preview the context of the next model call with any policy, model, budget or head.

    Nothing is recorded or changed, and `wait_ms` has no effect.
    """
    check_alone(body)
    if body.messages is not None:
        raise InvalidRequest("a preview appends nothing, so it cannot have messages", field="messages")
    asked = await context_request(body, who, sid, feedback)
    answer = await preview.context(who.tenant_id, sid, asked, diff_with)
    return Response(preview_json(sid, answer), media_type="application/json")
