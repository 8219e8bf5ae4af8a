"""Visibility: hide, show, pin and unpin events. The log keeps all of them."""

from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends
from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.core.assembly.visibility import (
    ITEMS_MAX,
    PATH_CHARS_MAX,
    REPLACEMENT_CHARS_MAX,
    Action,
    Reason,
    Target,
    VisibilityRequest,
)
from app.http.fields import SessionName, Sid, StrictRequest, ViewName, answer_of
from app.http.operation import Resource, Who, service
from app.resources.visibility.service import Visibility

Seq = Annotated[int, Field(ge=1, lt=2**63, strict=True)]
Text = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Path = Annotated[Text, Field(min_length=1, max_length=PATH_CHARS_MAX)]


class TargetIn(StrictRequest):
    """Target of a decision: one event by its seq, or all events in the context that concern a path. Exactly one of the
    two must be given."""

    seq: Seq | None = Field(None, description="Seq of the event.")
    path: Path | None = Field(
        None, description="Path, exactly as the events or the arguments of their tool calls name it."
    )

    @model_validator(mode="after")
    def _one(self) -> "TargetIn":
        if (self.seq is None) == (self.path is None):
            raise ValueError("give either seq or path")
        return self


class HideIn(TargetIn):
    """Target to hide: one event by its seq, or all events in the context that concern a path."""

    replacement: Annotated[Text, Field(max_length=REPLACEMENT_CHARS_MAX)] | None = Field(
        None,
        description="Text to show instead; for several events with the same path, only the first shows it. Default: "
        "nothing, or a line that says so where the provider requires content.",
    )


class VisibilityIn(StrictRequest):
    """Decisions on the events that contexts show. They apply to every view of the session, in this order: unpin, show,
    hide, pin. An item is the seq of an event, or a target."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"hide": [{"path": "/build.log", "replacement": "[the build passed]"}], "pin": [3]}]
        },
    )

    hide: list[Seq | HideIn] = Field(
        default_factory=list, max_length=ITEMS_MAX, description="Events to hide, or to show only as a replacement."
    )
    show: list[Seq | TargetIn] = Field(
        default_factory=list, max_length=ITEMS_MAX, description="Events to show again as they were logged."
    )
    pin: list[Seq | TargetIn] = Field(
        default_factory=list,
        max_length=ITEMS_MAX,
        description="Events that every context must show, whatever the budget.",
    )
    unpin: list[Seq | TargetIn] = Field(
        default_factory=list,
        max_length=ITEMS_MAX,
        description="Events to unpin, however they were pinned.",
    )
    view: ViewName = Field("main", description="Name of the view whose context is used to judge each item.")
    force: bool = Field(
        False,
        description="Whether to hide events even if, by the policy, they are too old or hiding them is not worth the "
        "price. Providers' rules and protections still apply.",
    )


class RefusedOut(BaseModel):
    """A refused item, with the reason."""

    action: Action = Field(description="Action that was requested.")
    seq: int | None = Field(description="Seq of the event; null if the target was a path without events.")
    path: str | None = Field(description="Path of the target, as given; null if it was given by seq.")
    reason: Reason = Field(
        description="Reason: `unknown` (no such event in this view), `protocol` (the provider would reject the rest), "
        "`open_call` (the tool call has no result yet), `protected` (pinned, or the running turn's user message), "
        "`hidden` (show it first), `folded` (a summary covers it), `dropped` (it was left out; recall it instead), "
        "`too_old` (too much of the cached prefix follows it), `not_worth_it` (hiding it would cost more than it "
        "saves), `no_room` (it does not fit the budget)."
    )
    detail: str = Field(description="Human-readable explanation of the reason.")


class VisibilityOut(BaseModel):
    """Result of a visibility request: the events that are now as requested, and the refused items."""

    session: SessionName
    head: int = Field(description="Seq of the last event in the log when the decisions were taken.")
    decisions: int = Field(
        description="Number of requests so far that changed the visibility of the session's events, including this one "
        "if it did."
    )
    hidden: list[int] = Field(description="Seqs of the events that are hidden as requested.")
    shown: list[int] = Field(description="Seqs of the events that are shown as requested.")
    pinned: list[int] = Field(description="Seqs of the events that are pinned as requested.")
    unpinned: list[int] = Field(description="Seqs of the events that are unpinned as requested.")
    refused: list[RefusedOut] = Field(description="Items that were refused, with the reasons.")


router = Resource("visibility")


@router.operation(
    "PATCH",
    "/v1/sessions/{sid}/visibility",
    scope="ingest",
    summary="Hide, show and pin events",
    returns=VisibilityOut,
    problems=("invalid-policy", "context-infeasible", "conflict"),
)
async def patch_visibility(
    sid: Sid,
    body: VisibilityIn,
    who: Who,
    visibility: Annotated[Visibility, Depends(service(Visibility))],
) -> VisibilityOut:
    """Hide, show, pin and unpin events for all future contexts. Each item is accepted or refused separately."""
    asked = VisibilityRequest(
        hide=_targets(body.hide),
        show=_targets(body.show),
        pin=_targets(body.pin),
        unpin=_targets(body.unpin),
        force=body.force,
    )
    done = await visibility.decide(who.tenant_id, sid, body.view, asked)
    refused = [answer_of(RefusedOut, one, one.target) for one in done.outcome.refused]
    return answer_of(VisibilityOut, done, done.outcome, session=sid, refused=refused)


def _targets(given: Iterable[int | TargetIn]) -> tuple[Target, ...]:
    return tuple(Target(one) if isinstance(one, int) else Target(**dict(one)) for one in given)
