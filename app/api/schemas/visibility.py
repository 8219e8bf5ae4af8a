"""Decisions about what is hidden, shown and pinned."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.api.schemas.common import Closed, SessionName, ViewName
from app.core.visibility import ITEMS_MAX, PATH_CHARS_MAX, REPLACEMENT_CHARS_MAX, Action, Reason

Seq = Annotated[int, Field(ge=1, lt=2**63, strict=True)]
Text = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Path = Annotated[Text, Field(min_length=1, max_length=PATH_CHARS_MAX)]


class TargetIn(Closed):
    """Target of a decision: one event by its seq, or all events in the context that are about a path. Exactly one of
    the two is given."""

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
    """What to hide: one event by its seq, or all events in the context that are about a path."""

    replacement: Annotated[Text, Field(max_length=REPLACEMENT_CHARS_MAX)] | None = Field(
        None,
        description="Text to show instead; of several events about one path only the first shows it. Null: nothing, or "
        "a line that says it is hidden where the provider requires something.",
    )


class VisibilityIn(Closed):
    """Decisions about what contexts show. They hold in every view of the session, and are taken in this order: unpin,
    show, hide, pin. Each item is an event's seq or a target."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"hide": [{"path": "/build.log", "replacement": "[the build passed]"}], "pin": [3]}]
        },
    )

    hide: list[Seq | HideIn] = Field(
        default_factory=list, max_length=ITEMS_MAX, description="Events to hide: not shown, or by a replacement only."
    )
    show: list[Seq | TargetIn] = Field(
        default_factory=list, max_length=ITEMS_MAX, description="Events to show again as they were logged."
    )
    pin: list[Seq | TargetIn] = Field(
        default_factory=list, max_length=ITEMS_MAX, description="Events to keep in every context whatever the budget."
    )
    unpin: list[Seq | TargetIn] = Field(
        default_factory=list,
        max_length=ITEMS_MAX,
        description="Events to pin no longer, however they came to be pinned.",
    )
    view: ViewName = Field("main", description="Name of the view whose context decides what is possible and pays.")
    force: bool = Field(
        False,
        description="Whether to hide also what the policy finds too old or not worth its price. It breaks no rule of "
        "the provider and unprotects nothing.",
    )


class RefusedOut(BaseModel):
    """An item that was refused, and why."""

    action: Action = Field(description="What was to be done.")
    seq: int | None = Field(description="Seq of the event; null if the target was a path that no event is about.")
    path: str | None = Field(description="Path of the target, as given; null if it was given by seq.")
    reason: Reason = Field(
        description="`unknown` (no such event in this view), `protocol` (the provider would refuse what is left), "
        "`open_call` (the tool call has no result yet), `protected` (pinned, or the running turn's user message), "
        "`hidden` (show it first), `folded` (a summary covers it), `dropped` (it was left out; recall it), `too_old` "
        "(too much of the cached prefix stands behind it), `not_worth_it` (hiding it would cost more cache than it "
        "saves), `no_room` (it does not fit the budget)."
    )
    detail: str = Field(description="The same for people.")


class VisibilityOut(BaseModel):
    """Result of a request for decisions: the events that are now as they were asked to be, and what was refused."""

    session: SessionName
    head: int = Field(description="Seq of the last event in the log when the decisions were taken.")
    decisions: int = Field(
        description="Number of requests that have ever changed what the session shows, this one included if it did."
    )
    hidden: list[int] = Field(description="Seqs that were to be hidden and are.")
    shown: list[int] = Field(description="Seqs that were to be shown and are.")
    pinned: list[int] = Field(description="Seqs that were to be pinned and are.")
    unpinned: list[int] = Field(description="Seqs that were to be unpinned and are.")
    refused: list[RefusedOut] = Field(description="Items that were refused, in the order in which they were decided.")
