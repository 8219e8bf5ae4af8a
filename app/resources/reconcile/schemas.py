"""The plan for a client's messages, and the events appended from them."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from app.http.fields import Seq
from app.resources.events.schemas import LoggedEvent


class ReconciledEvent(LoggedEvent):
    """Place in the log of an event that was appended from a client's messages."""

    index: int | None = Field(
        description="Index, from 0, of the message that it came from; null for the request's `system` and `tools`."
    )


ActionOf = Annotated[
    Literal["keep", "replace", "drop"],
    Field(description="`keep`: shown as the client sent it. `replace`: shown with other content. `drop`: not shown."),
]
NewText = Annotated[
    str | None,
    Field(description="Content shown instead, for a tool call its arguments as JSON; present if it is replaced."),
]


class PartPlanOut(BaseModel):
    """Plan for one event of a message: its text, a tool call, or a tool result."""

    seq: Seq
    call_id: str | None = Field(None, description="Id of the tool call; absent for text.")
    action: ActionOf
    text: NewText = None


class MessagePlanOut(BaseModel):
    """Plan for one of the client's messages."""

    index: int = Field(description="Index of the message, from 0.")
    action: ActionOf
    text: NewText = None
    parts: list[PartPlanOut] | None = Field(
        None,
        description="Plan for each of the message's events; present if there are several and they are neither all kept "
        "nor all dropped.",
    )
    seqs: list[int] = Field(description="Seqs of the message's events; empty if it has only reasoning.")


class InsertedOut(BaseModel):
    """A message that the context has and the client does not."""

    before: int = Field(
        description="Index of the client's message that it precedes; at the end, the number of messages."
    )
    kind: Literal["summary", "note", "layer", "injection", "pending"] = Field(
        description="Kind: `summary` (of events that are left out), `note` (text of the server or of the log), "
        "`layer`, `injection`, or `pending` (placeholder for the result of a tool call that has none yet)."
    )
    role: Literal["system", "user", "tool"] = Field(description="Role of the message; `tool` for a result.")
    text: str = Field(description="Text of the message.")
    id: str | None = Field(
        None, description="Id of the summary (the newest, if several), or name of the layer or injection."
    )
    call_id: str | None = Field(None, description="Id of the tool call that the result is pending for.")
