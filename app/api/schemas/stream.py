"""What a stream reports beside events."""

from typing import Literal

from pydantic import BaseModel, Field

from app.api.schemas.common import (
    CreatedAt,
    EpochCause,
    EpochHead,
    EpochNumber,
    EpochTokensAfter,
    EpochTokensBefore,
    SessionName,
)
from app.api.schemas.summaries import CompactionRun


class EpochChange(BaseModel):
    """An epoch was opened: data of a stream's `epoch` message."""

    session: SessionName
    view: str = Field(description="Name of the view.")
    epoch: EpochNumber
    current: bool = Field(
        description="Whether it is the view's current epoch; false for one opened by a context of an earlier seq."
    )
    cause: EpochCause
    head: EpochHead
    tokens_before: EpochTokensBefore
    tokens_after: EpochTokensAfter
    created_at: CreatedAt


class CompactionTokens(BaseModel):
    """Effect of a compaction run on the `main` view's context, in tokens by the estimator."""

    before: int | None = Field(description="Size of the context when the run began; null before that.")
    after: int | None = Field(description="Estimated size with the run's summaries shown; null unless it succeeded.")
    compacted: int | None = Field(description="`before` less `after`, at least 0; null until the run has ended.")


class CompactionChange(BaseModel):
    """A compaction run was scheduled, began, or ended: data of a stream's `compaction` message and of a webhook."""

    session: SessionName
    state: Literal["scheduled", "started", "finished", "failed"] = Field(
        description="`scheduled`: asked for, or put off until later; `started`; `finished`: it succeeded or had "
        "nothing to do, as `run.state` says; `failed`."
    )
    run: CompactionRun = Field(description="The run, as it now is.")
    tokens: CompactionTokens = Field(description="Effect of the run on the `main` view's context.")
    aborted: bool = Field(description="Whether it failed: the context stays as it was.")
    will_retry: bool = Field(
        description="Whether it was put off because no summarizer could be had, to be tried again."
    )
    kept_from_seq: int | None = Field(
        description="Seq of the first event after those that its summaries cover; null while it has written none."
    )
