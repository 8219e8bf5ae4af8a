"""Changes that a stream reports in addition to events."""

from typing import Literal

from pydantic import BaseModel, Field

from app.http.fields import (
    CreatedAt,
    EpochCause,
    EpochHead,
    EpochNumber,
    EpochTokensAfter,
    EpochTokensBefore,
    SessionName,
)
from app.resources.summaries.routes import CompactionRun


class EpochChange(BaseModel):
    """A newly opened epoch: the data of a stream's `epoch` message."""

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
    after: int | None = Field(
        description="Estimated size of the context with the new summaries; null unless the run succeeded."
    )
    compacted: int | None = Field(description="`before` minus `after`, at least 0; null until the run has ended.")


class CompactionChange(BaseModel):
    """A step of a compaction run: the data of a stream's `compaction` message and of a webhook."""

    session: SessionName
    state: Literal["scheduled", "started", "finished", "failed"] = Field(
        description="Step of the run: `scheduled` (also if postponed), `started`, `finished` (`run.state` shows "
        "whether there was anything to summarize) or `failed`."
    )
    run: CompactionRun = Field(description="State of the run after this step.")
    tokens: CompactionTokens = Field(description="Effect of the run on the `main` view's context.")
    aborted: bool = Field(description="Whether the run failed and contexts stay as they were.")
    will_retry: bool = Field(description="Whether the run was postponed because the summarizer was unavailable.")
    kept_from_seq: int | None = Field(
        description="Seq of the first event after those that the new summaries cover; null if there are none."
    )
