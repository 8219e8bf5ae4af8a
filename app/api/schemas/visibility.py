"""What is hidden, shown and pinned."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.api.schemas.common import Closed, ViewName
from app.core.recall.visibility import ITEMS_MAX, PATH_CHARS_MAX, REPLACEMENT_CHARS_MAX, Action, Reason

Seq = Annotated[int, Field(ge=1, lt=2**63, strict=True)]
Text = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Path = Annotated[Text, Field(min_length=1, max_length=PATH_CHARS_MAX)]


class TargetIn(Closed):
    """One event by its seq, or every event in the context that is about a path (its own, or one that its call names).

    A path must be given exactly as it was logged.
    """

    seq: Seq | None = None
    path: Path | None = None

    @model_validator(mode="after")
    def _one(self) -> "TargetIn":
        if (self.seq is None) == (self.path is None):
            raise ValueError("give either seq or path")
        return self


class HideIn(TargetIn):
    """`replacement` is shown instead; without it nothing is, where that is legal. Of one path the first one speaks."""

    replacement: Annotated[Text, Field(max_length=REPLACEMENT_CHARS_MAX)] | None = None


class VisibilityIn(Closed):
    """Decisions about what a session shows. `view` is the one whose context they are judged by; they hold in all.

    Taken in this order, however they are given: unpin, show, hide, pin. `force` hides also what the policy finds too
    old or not worth its price; it never breaks a rule of the providers or a protection.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"hide": [{"path": "/build.log", "replacement": "[the build passed]"}], "pin": [3]}]
        },
    )

    hide: list[Seq | HideIn] = Field(default_factory=list, max_length=ITEMS_MAX)
    show: list[Seq | TargetIn] = Field(default_factory=list, max_length=ITEMS_MAX)
    pin: list[Seq | TargetIn] = Field(default_factory=list, max_length=ITEMS_MAX)
    unpin: list[Seq | TargetIn] = Field(default_factory=list, max_length=ITEMS_MAX)
    view: ViewName = "main"
    force: bool = False


class RefusedOut(BaseModel):
    """What was asked for in vain. With both `seq` and `path`: one of the events that the path named.

    `unknown`: no such event in this view; `protocol`: providers would refuse what is left; `open_call`: it has no
    result yet; `protected`: pinned, or the running turn's user message; `hidden`: show it first; `folded`, `dropped`: a
    summary or a note stands for it, so recall it; `too_old`: too much of the cached prefix stands behind it;
    `not_worth_it`: hiding costs more cache than it saves; `no_room`: it does not fit.
    """

    action: Action
    seq: int | None
    path: str | None
    reason: Reason
    detail: str


class VisibilityOut(BaseModel):
    """The seqs that now are as they were asked to be, and what was refused. `decisions`: how many times any changed."""

    session: str
    head: int
    decisions: int
    hidden: list[int]
    shown: list[int]
    pinned: list[int]
    unpinned: list[int]
    refused: list[RefusedOut]
