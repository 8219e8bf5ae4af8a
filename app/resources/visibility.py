"""Visibility: hide, show, pin and unpin events. The log keeps all of them.

Decisions are judged by a view and recorded for the whole session. Nothing is rendered, and only decisions are recorded:
events that a view's policy has evicted stay evicted. Each view applies the decisions in its next context, with a new
epoch if they change that context.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

from fastapi import Depends
from pydantic import BaseModel, Field, model_validator

from app.core.assembly.inputs import ContextInputs, ContextRequest, plan_inputs
from app.core.assembly.visibility import (
    ITEMS_MAX,
    PATH_CHARS_MAX,
    REPLACEMENT_CHARS_MAX,
    Action,
    Reason,
    Target,
    VisibilityInput,
    VisibilityOutcome,
    VisibilityRequest,
    decide,
)
from app.core.errors import Conflict
from app.core.plan.update import update_context
from app.http.fields import SessionName, Sid, StrictRequest, ViewName, answer_of
from app.http.openapi import examples
from app.http.operation import Resource, Who, service
from app.resources.contexts.service import Assembly
from app.store import event_log, sessions, visibility
from app.store.engine import Database
from app.store.event_log import SessionLog

ATTEMPTS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class VisibilityResult:
    """The results of a request, the head at that time, and the number of requests so far that changed the session's
    visibility."""

    head: int
    decisions: int
    outcome: VisibilityOutcome


class Visibility:
    """Decides the visibility of events."""

    def __init__(self, database: Database, assembly: Assembly) -> None:
        self._database = database
        self._assembly = assembly

    async def decide(self, tenant_id: UUID, address: str, view: str, request: VisibilityRequest) -> VisibilityResult:
        """Decide each item separately; a repetition changes nothing. Raises NotFound, InvalidPolicy, CannotFit or
        Conflict.

        The session is read without a lock: after a concurrent decision, everything is decided again.
        """
        for _ in range(ATTEMPTS_MAX):
            inputs = await self._assembly.load_inputs(tenant_id, address, ContextRequest(view=view))
            outcome = await self._outcome(inputs, request)
            async with self._database.transaction() as tx:
                session = await sessions.get_locked(tx, tenant_id, address)
                if session.decisions != inputs.loaded.decisions:
                    continue
                if not outcome.decisions:
                    return VisibilityResult(session.state.head, session.decisions, outcome)
                await visibility.record(tx, session, outcome.decisions)
            return VisibilityResult(session.state.head, session.decisions + 1, outcome)
        raise Conflict("concurrent decisions kept changing this session; retry the request")

    async def _outcome(self, inputs: ContextInputs, request: VisibilityRequest) -> VisibilityOutcome:
        loaded = inputs.loaded
        bare = [event.seq for event in loaded.events if event.body is None]
        paths = await event_log.paths(self._database, SessionLog(loaded.session_id), bare) if bare else {}

        def look() -> VisibilityOutcome:
            read, state = plan_inputs(inputs)
            policy = inputs.settings.policy
            now = update_context(read, inputs.budget, policy, state)
            given = VisibilityInput(
                context=now.context,
                state=now.state,
                decided=loaded.decided,
                pinned=frozenset(loaded.pinned),
                head=loaded.head,
                budget=inputs.budget,
                rules=policy.visibility,
                cache=inputs.cache,
                warm=read.is_warm(now.context),
                paths=paths,
            )
            return decide(request, given)

        return await asyncio.to_thread(look)


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

    model_config = examples(
        lambda: VisibilityIn(hide=[HideIn(path="/build.log", replacement="[the build passed]")], pin=[3])
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
        default_factory=list, max_length=ITEMS_MAX, description="Events to unpin, however they were pinned."
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
    problems=("invalid-policy", "context-infeasible", "conflict"),
)
async def patch_visibility(
    sid: Sid, body: VisibilityIn, who: Who, visibility: Annotated[Visibility, Depends(service(Visibility))]
) -> VisibilityOut:
    """Hide, show, pin and unpin events for all future contexts. Each item is accepted or refused separately."""
    request = VisibilityRequest(
        hide=_targets(body.hide),
        show=_targets(body.show),
        pin=_targets(body.pin),
        unpin=_targets(body.unpin),
        force=body.force,
    )
    done = await visibility.decide(who.tenant_id, sid, body.view, request)
    refused = [answer_of(RefusedOut, one, one.target) for one in done.outcome.refused]
    return answer_of(VisibilityOut, done, done.outcome, session=sid, refused=refused)


def _targets(given: Iterable[int | TargetIn]) -> tuple[Target, ...]:
    return tuple(Target(one) if isinstance(one, int) else Target(**dict(one)) for one in given)
