"""Previews: contexts that are rendered and not recorded."""

from typing import Literal

from pydantic import Field

from app.api.schemas.audit import CallRef, DiffOut
from app.api.schemas.context import ContextOut


class PreviewRef(CallRef):
    """A preview, and the settings of its context."""

    call_id: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed
    created_at: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed


class PreviewDiff(DiffOut):
    """Difference between a recorded call (`a`) and a preview (`b`)."""

    b: PreviewRef = Field(description="The preview.")


class PreviewOut(ContextOut):
    """A context as the next call would get it. Nothing was recorded or changed."""

    call_id: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed
    preview: Literal[True] = Field(description="Always true: this is a preview.")
    cause: str | None = Field(
        description="Cause of the new epoch that it would open, as in `EpochOut.cause`; null if the current epoch "
        "would stay."
    )
    diff: PreviewDiff | None = Field(
        None, description="Difference from the recorded call named by `diff_with`; absent without it."
    )
