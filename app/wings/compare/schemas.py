"""Differences of two contexts, histories of events, and previews."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.http import fields
from app.http.openapi import examples
from app.http.paging import page_of
from app.resources.contexts.schemas import CallRef, ContextOut, example


class BlockOut(BaseModel):
    """A block of a context: one event, or a text of the server in place of several."""

    seq: int = Field(description="Seq of the event that it shows; for several events, that of the last.")
    kind: str = Field(
        description="Kind of block: `tools`, `system`, `user`, `assistant`, `call`, `result` or `note` (a text of the "
        "server)."
    )
    replaced: bool = Field(description="Whether a stub or other text replaces the event's own content.")
    ephemeral: bool = Field(description="Whether it comes after the cached prefix and may differ in the next call.")
    chars: int = Field(description="Length of its text, in characters.")
    begins: str = Field(description="Beginning of its text, at most 240 characters.")


class FirstDifference(BaseModel):
    """The first block in which two contexts differ."""

    index: int = Field(description="Position of the block in each context, counted from 0.")
    a: BlockOut | None = Field(description="Block of the first context; null if it has fewer blocks.")
    b: BlockOut | None = Field(description="Block of the second context; null if it has fewer blocks.")


class Change(BaseModel):
    """A range of events that the second context shows differently from the first."""

    model_config = ConfigDict(populate_by_name=True)

    from_seq: fields.FromSeq
    to_seq: fields.ToSeq
    change: Literal["added", "removed", "changed"] = Field(
        description="Kind of change: only the second context shows any of the events (`added`), only the first does "
        "(`removed`), or both or neither do (`changed`)."
    )
    before: str | None = Field(
        alias="from",
        description="Disposition in the first context, as in `DispositionRun`; null if the events were not logged yet.",
    )
    after: str | None = Field(
        alias="to",
        description="Disposition in the second context, as in `DispositionRun`; null if the events were not logged "
        "yet.",
    )
    summary: str | None = Field(
        None, description="Id of the summary that covers the events in the later call; null or absent if none does."
    )
    reducer: fields.ReducerIfAny = None
    reason: fields.ReasonIfAny = None
    epoch: int | None = Field(
        description="Number of the epoch that made the change, in the view of the later call; null if an append or an "
        "erasure made it."
    )
    cause: str | None = Field(
        description="Cause of that epoch, as in `EpochOut.cause`; `appended` if the events were not logged yet, "
        "`redaction` if they were erased."
    )
    tokens: int = Field(
        description="Additional tokens that the events take in the second context, by the estimator; negative if they "
        "take fewer."
    )


class TokensDiff(BaseModel):
    """Sizes of the two contexts, in tokens by the estimator of each."""

    a: int = Field(description="Size of the first context.")
    b: int = Field(description="Size of the second context.")
    by_cause: dict[str, int] = Field(
        description="Difference in size by cause, as in `Change.cause`, with `other` for the rest. The figures add up "
        "to `b` minus `a`."
    )


class DiffOut(BaseModel):
    """Difference between two calls of a session."""

    a: CallRef = Field(description="First call.")
    b: CallRef = Field(description="Second call.")
    identical: bool = Field(description="Whether both contexts have the same blocks in the same format.")
    first_difference: FirstDifference | None = Field(description="First block that differs; null if none does.")
    changes: list[Change] = Field(description="Events that are shown differently, in the order of the log.")
    tokens: TokensDiff = Field(description="Difference in size, and what caused it.")


class HistoryItem(BaseModel):
    """An event as the context of one call shows it."""

    call_id: fields.CallId
    created_at: datetime = Field(description="Time at which the call's context was made.")
    view: fields.ViewOf
    disposition: fields.Disposition
    summary: fields.CoveringSummary = None
    reducer: fields.ReducerIfAny = None
    reason: fields.ReasonIfAny = None
    epoch: fields.CallEpoch
    cause: fields.CallCause
    reported: bool = Field(
        description="Whether an outcome of the call was reported. If not, it is not known whether its request was sent."
    )


HistoryPage = page_of(
    HistoryItem, "A page of the history of an event.", "Calls made since the event was logged, oldest first."
)


class PreviewRef(CallRef):
    """A preview, and the settings of its context."""

    call_id: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed
    created_at: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed


class PreviewDiff(DiffOut):
    """Difference between a recorded call (`a`) and a preview (`b`)."""

    b: PreviewRef = Field(description="The preview.")


class PreviewOut(ContextOut):
    """A context as the next call would get it. Nothing was recorded or changed."""

    model_config = examples(
        lambda: PreviewOut(
            **example().model_dump(exclude={"call_id"}, exclude_unset=True), call_id=None, preview=True, cause="start"
        )
    )

    call_id: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed
    preview: Literal[True] = Field(description="Always true: this is a preview.")
    cause: str | None = Field(
        description="Cause of the new epoch that it would open, as in `EpochOut.cause`; null if the current epoch "
        "would stay."
    )
    diff: PreviewDiff | None = Field(
        None, description="Difference from the recorded call named by `diff_with`; absent without it."
    )
