"""What a stream tells beside events."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from app.api.schemas.summaries import CompactionRun


class EpochChange(BaseModel):
    """An epoch was opened. `current`: it is the one its view stands at, not one for a context as of an earlier seq."""

    session: str
    view: str
    epoch: int
    current: bool
    cause: str
    head: int
    tokens_before: int
    tokens_after: int
    created_at: datetime


class CompactionTokens(BaseModel):
    """The main view's tokens when the run began, those that its summaries leave, and the difference once it ended."""

    before: int | None
    after: int | None
    compacted: int | None


class CompactionChange(BaseModel):
    """A compaction was scheduled (also: put off), began, or ended; `run.state` says whether it did anything."""

    session: str
    state: Literal["scheduled", "started", "finished", "failed"]
    run: CompactionRun
    tokens: CompactionTokens
    aborted: bool = Field(description="It failed: the context stays as it was.")
    will_retry: bool = Field(description="It could not be made now and will be tried again.")
    kept_from_seq: int | None = Field(description="The first event behind what its summaries cover.")
