"""Previews: a context that was not recorded."""

from typing import Literal

from pydantic import Field

from app.api.schemas.audit import CallRef, DiffOut
from app.api.schemas.context import ContextOut


class PreviewRef(CallRef):
    """What it was rendered with."""

    call_id: None  # type: ignore[assignment]  # there is no such call
    created_at: None  # type: ignore[assignment]  # and so none was made


class PreviewDiff(DiffOut):
    """What differs from a recorded call (`a`) to the preview (`b`)."""

    b: PreviewRef


class PreviewOut(ContextOut):
    """What the context would be. `epoch` is the one it would be rendered in."""

    call_id: None = Field(description="There is no such call.")  # type: ignore[assignment]  # the one field that differs
    preview: Literal[True]
    cause: str | None = Field(description="Why it would open a new epoch; null: the view's own still stands.")
    diff: PreviewDiff | None = Field(None, description="Only with `diff_with`.")
