"""Decisions about what is hidden, shown and pinned."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.api.schemas.common import Closed, SessionName, ViewName
from app.core.recall.visibility import ITEMS_MAX, PATH_CHARS_MAX, REPLACEMENT_CHARS_MAX, Action, Reason

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
        description="Text to show instead; of several events about one path only the first shows it. Default: nothing, "
        "or a line that says so where the provider requires content.",
    )


class VisibilityIn(Closed):
    """Decisions about what contexts show. They apply to every view of the session, in this order: unpin, show, hide,
    pin. An item is the seq of an event, or a target."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"hide": [{"path": "/build.log", "replacement": "[the build passed]"}], "pin": [3]}]
        },
    )

    hide: list[Seq | HideIn] = Field(
        default_factory=list, max_length=ITEMS_MAX, description="Events to hide, or to show by a replacement only."
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
        description="Events to unpin, however they came to be pinned.",
    )
    view: ViewName = Field("main", description="Name of the view by whose context each item is judged.")
    force: bool = Field(
        False,
        description="Whether to hide events even if the policy finds them too old or not worth the price. Providers' "
        "rules and protections still apply.",
    )


class RefusedOut(BaseModel):
    """An item that was refused, and why."""

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
    detail: str = Field(description="Explanation of the reason, for people.")


class VisibilityOut(BaseModel):
    """Result of a visibility request: what now is as requested, and what was refused."""

    session: SessionName
    head: int = Field(description="Seq of the last event in the log when the decisions were taken.")
    decisions: int = Field(
        description="Number of requests that have ever changed what the session shows, this one included if it did."
    )
    hidden: list[int] = Field(description="Seqs of the events that are hidden as requested.")
    shown: list[int] = Field(description="Seqs of the events that are shown as requested.")
    pinned: list[int] = Field(description="Seqs of the events that are pinned as requested.")
    unpinned: list[int] = Field(description="Seqs of the events that are unpinned as requested.")
    refused: list[RefusedOut] = Field(description="Items that were refused, with the reasons.")
